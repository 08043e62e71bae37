package rocketbox;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Answers the requests of a topic, and sends each line of the input as a request to another one.
 *
 * <pre>
 * Replies NAME_SERVER TOPIC_TO_ANSWER TOPIC_TO_ASK GROUP MILLISECONDS
 * </pre>
 *
 * An answer is the body of the request behind {@code java:}, by what rocketmq-spring's reply listener answers with as
 * well. Prints {@code joined} when both have started, and behind each line {@code < BODY} of its reply, or
 * {@code timeout}; ends when its input does.
 */
public final class Replies {
    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(arguments[3] + "-askers");
        producer.setNamesrvAddr(arguments[0]);
        producer.setSendMsgTimeout(12_000);
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[3]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch) {
                if (MessageUtil.getReplyToClient(message) == null) {
                    continue; // it has made the topic
                }
                byte[] body = ("java:" + new String(message.getBody(), StandardCharsets.UTF_8))
                    .getBytes(StandardCharsets.UTF_8);
                try {
                    producer.send(MessageUtil.createReplyMessage(message, body), 12_000);
                } catch (Exception error) {
                    error.printStackTrace();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        say("joined");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Message request = new Message(arguments[2], line.getBytes(StandardCharsets.UTF_8));
            try {
                Message reply = producer.request(request, Long.parseLong(arguments[4]));
                say("< " + new String(reply.getBody(), StandardCharsets.UTF_8));
            } catch (RequestTimeoutException error) {
                say("timeout");
            }
        }
        consumer.shutdown();
        producer.shutdown();
        System.exit(0); // the client's threads would keep the process alive
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
