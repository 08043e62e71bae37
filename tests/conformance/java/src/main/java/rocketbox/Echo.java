package rocketbox;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends each message of a topic on to another one, with its body and its content type, and tells what it has read.
 *
 * <pre>
 * Echo NAME_SERVER TOPIC OTHER_TOPIC GROUP MESSAGES
 * </pre>
 *
 * Prints {@code > CONTENT_TYPE BODY} with the bytes of the body as hexadecimal digits, and {@code done} behind all.
 */
public final class Echo {
    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(arguments[3] + "-sends");
        producer.setNamesrvAddr(arguments[0]);
        producer.setSendMsgTimeout(12_000); // the first send of a Java client takes long on a busy machine
        producer.start();
        CountDownLatch left = new CountDownLatch(Integer.parseInt(arguments[4]));
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[3]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch) {
                Message echo = new Message(arguments[2], message.getBody());
                String contentType = message.getUserProperty("contentType");
                if (contentType != null) {
                    echo.putUserProperty("contentType", contentType);
                }
                echo.setKeys(message.getKeys());
                try {
                    producer.send(echo);
                } catch (Exception error) {
                    error.printStackTrace();
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                say("> " + contentType + " " + hexadecimal(message.getBody()));
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        say(left.await(60, TimeUnit.SECONDS) ? "done" : "late");
        consumer.shutdown();
        producer.shutdown();
        System.exit(0); // the client's threads would keep the process alive
    }

    private static String hexadecimal(byte[] body) {
        StringBuilder text = new StringBuilder();
        for (byte each : body) {
            text.append(String.format("%02x", each));
        }
        return text.toString();
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
