package rocketbox;

import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A member of a consumer group: prints {@code > body} when a message comes and {@code < body} when it is handled.
 *
 * <pre>
 * Member NAME_SERVER TOPIC GROUP concurrent|orderly HANDLER_MS
 * </pre>
 *
 * Prints {@code joined} when it has started, leaves when its input ends, and prints {@code left} then.
 */
public final class Member {
    public static void main(String[] arguments) throws Exception {
        int handlerMs = Integer.parseInt(arguments[4]);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[2]);
        consumer.setAwaitTerminationMillisWhenShutdown(10_000); // else the handlers that run would be interrupted
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments[1], "*");
        if (arguments[3].equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
                handle(batch, handlerMs);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
                handle(batch, handlerMs);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        say("joined");
        while (System.in.read() >= 0) {
            // nothing is said to it
        }
        consumer.shutdown();
        say("left");
        System.exit(0); // the client's threads would keep the process alive
    }

    private static void handle(List<MessageExt> batch, int handlerMs) {
        for (MessageExt message : batch) {
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            say("> " + body);
            try {
                Thread.sleep(handlerMs);
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
            say("< " + body);
        }
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
