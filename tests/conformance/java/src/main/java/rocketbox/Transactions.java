package rocketbox;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A producer of transactions: each line {@code LOCAL CHECKED BODY} of the input is sent, LOCAL is what its local work
 * says (commit, rollback or unknown), CHECKED what is answered when the broker asks.
 *
 * <pre>
 * Transactions NAME_SERVER GROUP TOPIC
 * </pre>
 *
 * Prints {@code started}, {@code sent TRANSACTION_ID STATE} behind each line, and {@code checked TRANSACTION_ID TOPIC
 * BODY} when it is asked; ends when its input does.
 */
public final class Transactions {
    private static final Map<String, LocalTransactionState> LOCAL = new ConcurrentHashMap<>();
    private static final Map<String, LocalTransactionState> CHECKED = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(arguments[1]);
        producer.setNamesrvAddr(arguments[0]);
        producer.setSendMsgTimeout(12_000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LOCAL.get(body(message));
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                say("checked " + message.getTransactionId() + " " + message.getTopic() + " " + body(message));
                return CHECKED.get(body(message));
            }
        });
        producer.start();
        say("started");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            LOCAL.put(words[2], state(words[0]));
            CHECKED.put(words[2], state(words[1]));
            TransactionSendResult sent = producer.sendMessageInTransaction(
                new Message(arguments[2], words[2].getBytes(StandardCharsets.UTF_8)), null);
            say("sent " + sent.getTransactionId() + " " + sent.getLocalTransactionState());
        }
        producer.shutdown();
        System.exit(0); // the client's threads would keep the process alive
    }

    private static LocalTransactionState state(String word) {
        switch (word) {
            case "commit":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            default:
                return LocalTransactionState.UNKNOW;
        }
    }

    private static String body(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
