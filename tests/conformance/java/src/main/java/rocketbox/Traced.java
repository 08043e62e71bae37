package rocketbox;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A producer and a consumer with message trace: each line {@code BODY} of the input is sent, with tag A and key k, and
 * one {@code transaction BODY} in a transaction that commits.
 *
 * <pre>
 * Traced NAME_SERVER GROUP TOPIC
 * </pre>
 *
 * Prints {@code started}, {@code sent MSG_ID} behind each line, and {@code got MSG_ID} for what the consumer gets; at
 * the end of its input it shuts both down, which sends the rest of their trace, and prints {@code over}.
 */
public final class Traced {
    public static void main(String[] arguments) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(null, arguments[1], null, true, null);
        producer.setNamesrvAddr(arguments[0]);
        producer.setSendMsgTimeout(12_000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[1], true, null);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments[2], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                say("got " + message.getMsgId());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        say("started");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            boolean isTransaction = line.startsWith("transaction ");
            Message message = new Message(arguments[2], "A", "k", line.getBytes(StandardCharsets.UTF_8));
            say("sent " + (isTransaction
                ? producer.sendMessageInTransaction(message, null).getMsgId() : producer.send(message).getMsgId()));
        }
        consumer.shutdown();
        producer.shutdown();
        say("over");
        System.exit(0); // the client's threads would keep the process alive
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
