package rocketbox;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A consumer and a producer in a namespace: each line of the input is sent to the second topic, and what comes from the
 * first one is printed as {@code > TOPIC BODY}.
 *
 * <pre>
 * Namespaced NAME_SERVER NAMESPACE TOPIC_TO_READ TOPIC_TO_WRITE GROUP
 * </pre>
 *
 * Prints {@code joined} when both have started, and {@code sent} behind each line; ends when its input does.
 */
public final class Namespaced {
    public static void main(String[] arguments) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[4]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setNamespace(arguments[1]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments[2], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch) {
                say("> " + message.getTopic() + " " + new String(message.getBody(), StandardCharsets.UTF_8));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        DefaultMQProducer producer = new DefaultMQProducer(arguments[4] + "-senders");
        producer.setNamesrvAddr(arguments[0]);
        producer.setNamespace(arguments[1]);
        producer.setSendMsgTimeout(12_000);
        producer.start();
        consumer.start();
        say("joined");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            producer.send(new Message(arguments[3], line.getBytes(StandardCharsets.UTF_8)));
            say("sent");
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
