package rocketbox;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Sends to two topics and consumes both, one concurrently and one orderly, each with a message at the end that fails
 * until it is given up.
 *
 * <pre>
 * Exchange NAME_SERVER TOPIC ORDERED_TOPIC GROUP ORDERED_GROUP MESSAGES [ACCESS_KEY SECRET_KEY]
 * </pre>
 *
 * The keys are of a user who may send to both topics and consume in both groups. Prints {@code > body tries} of the
 * first topic, {@code = body} of the second, and {@code done} when all was handled and what fails was tried twice.
 */
public final class Exchange {
    public static void main(String[] arguments) {
        try {
            exchange(arguments);
            System.exit(0); // the client's threads would keep the process alive
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void exchange(String[] arguments) throws Exception {
        String nameServer = arguments[0], topic = arguments[1], orderedTopic = arguments[2];
        int messages = Integer.parseInt(arguments[5]);
        RPCHook hook = arguments.length < 8 ? null : hook(arguments[6], arguments[7]);
        DefaultMQProducer producer = new DefaultMQProducer("exchange", hook);
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(12_000); // the first send of a Java client takes long on a busy machine
        producer.start();
        await(producer, topic);
        await(producer, orderedTopic);
        for (int number = 0; number < messages; number++) {
            producer.send(message(topic, "plain " + number));
            producer.send(message(orderedTopic, "ordered " + number), (queues, sent, key) -> queues.get(0), null);
        }
        producer.send(message(topic, "failing"));
        producer.send(message(orderedTopic, "failing"), (queues, sent, key) -> queues.get(0), null);
        producer.shutdown();
        say("sent");

        CountDownLatch left = new CountDownLatch(2 * messages + 4); // those that fail come twice
        DefaultMQPushConsumer concurrent = consumer(nameServer, arguments[3], topic, hook);
        concurrent.setMaxReconsumeTimes(1);
        concurrent.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            boolean failing = false;
            for (MessageExt message : batch) {
                String body = body(message);
                failing |= body.equals("failing");
                say("> " + body + " " + message.getReconsumeTimes());
                left.countDown();
            }
            context.setDelayLevelWhenNextConsume(1);
            return failing ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        DefaultMQPushConsumer orderly = consumer(nameServer, arguments[4], orderedTopic, hook);
        orderly.setMaxReconsumeTimes(1);
        orderly.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
            boolean failing = false;
            for (MessageExt message : batch) {
                String body = body(message);
                failing |= body.equals("failing");
                say("= " + body);
                left.countDown();
            }
            return failing ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
        });
        concurrent.start();
        orderly.start();
        boolean complete = left.await(60, TimeUnit.SECONDS);
        concurrent.shutdown();
        orderly.shutdown();
        say(complete ? "done" : "late");
    }

    /** A busy machine may need longer for the first route than the client waits. */
    private static void await(DefaultMQProducer producer, String topic) throws Exception {
        for (int attempt = 1; ; attempt++) {
            try {
                producer.fetchPublishMessageQueues(topic);
                return;
            } catch (Exception error) {
                if (attempt == 5) {
                    throw error;
                }
            }
        }
    }

    /** By name: of 4.9.7 the hook is not in the client's own jar. */
    private static RPCHook hook(String accessKey, String secretKey) throws ReflectiveOperationException {
        String where = "org.apache.rocketmq.acl.common.";
        Class<?> credentials = Class.forName(where + "SessionCredentials");
        Object keys = credentials.getConstructor(String.class, String.class).newInstance(accessKey, secretKey);
        return (RPCHook) Class.forName(where + "AclClientRPCHook").getConstructor(credentials).newInstance(keys);
    }

    private static DefaultMQPushConsumer consumer(String nameServer, String group, String topic, RPCHook hook)
            throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, hook, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(nameServer);
        consumer.setAwaitTerminationMillisWhenShutdown(10_000); // else what is given up last would be sent back twice
        consumer.setPollNameServerInterval(1_000); // of a new group the retry topic is found by the next look
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        return consumer;
    }

    private static Message message(String topic, String body) {
        return new Message(topic, "tag", "key", body.getBytes(StandardCharsets.UTF_8));
    }

    private static String body(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
