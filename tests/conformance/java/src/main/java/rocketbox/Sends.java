package rocketbox;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByRandom;
import org.apache.rocketmq.common.message.Message;

/**
 * A producer that is told line by line what to send:
 *
 * <pre>
 * Sends NAME_SERVER GROUP
 *
 * plain TOPIC BODY             oneway TOPIC BODY
 * level TOPIC BODY LEVEL       sec TOPIC BODY SECONDS     ms TOPIC BODY MILLISECONDS     at TOPIC BODY EPOCH_MS
 * hash TOPIC BODY KEY          random TOPIC BODY          large TOPIC BODY BYTES         batch TOPIC BODY BODY...
 * recall TOPIC HANDLE         packed TOPIC BODY BYTES ZLIB|LZ4|ZSTD
 * </pre>
 *
 * NAME_SERVER {@code -}: the system's properties tell which there are. {@code large} and {@code packed} repeat their
 * body up to so many bytes; {@code packed} sets how the producer compresses from then on. Answers each line with one:
 * {@code sent MSG_ID QUEUE_ID QUEUE_OFFSET HANDLE} (words that are not there are {@code -}; of a batch the ids of all
 * its messages, with commas), {@code recalled MSG_ID}, or {@code refused CODE}. Prints {@code started} first; ends when
 * its input does. Times of delivery, recalls and ways to compress are called by name: the client of 4.9.7 has neither.
 */
public final class Sends {
    private static final SelectMessageQueueByRandom RANDOM = new SelectMessageQueueByRandom(); // seeded by the time
    private static DefaultMQProducer producer;

    public static void main(String[] arguments) throws Exception {
        producer = new DefaultMQProducer(arguments[1]);
        if (!arguments[0].equals("-")) {
            producer.setNamesrvAddr(arguments[0]);
        }
        producer.setSendMsgTimeout(12_000);
        producer.start();
        say("started");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            try {
                say(run(line.split(" ")));
            } catch (MQBrokerException error) {
                say("refused " + error.getResponseCode());
            } catch (Exception error) {
                error.printStackTrace();
                say("failed");
            }
        }
        producer.shutdown();
        System.exit(0); // the client's threads would keep the process alive
    }

    private static String run(String[] words) throws Exception {
        String topic = words[1];
        if (words[0].equals("recall")) {
            try {
                return "recalled " + producer.getClass().getMethod("recallMessage", String.class, String.class)
                    .invoke(producer, topic, words[2]);
            } catch (java.lang.reflect.InvocationTargetException error) {
                throw (Exception) error.getCause();
            }
        }
        Message message = new Message(topic, "tag", "key", words[2].getBytes(StandardCharsets.UTF_8));
        switch (words[0]) {
            case "plain":
                return sent(producer.send(message));
            case "oneway":
                producer.sendOneway(message);
                return "sent - - - -";
            case "level":
                message.setDelayTimeLevel(Integer.parseInt(words[3]));
                return sent(producer.send(message));
            case "sec":
                return sent(producer.send(timed(message, "setDelayTimeSec", words[3])));
            case "ms":
                return sent(producer.send(timed(message, "setDelayTimeMs", words[3])));
            case "at":
                return sent(producer.send(timed(message, "setDeliverTimeMs", words[3])));
            case "hash":
                return sent(producer.send(message, new SelectMessageQueueByHash(), words[3]));
            case "random":
                return sent(producer.send(message, RANDOM, null));
            case "packed":
                Class<?> type = Class.forName("org.apache.rocketmq.common.compression.CompressionType");
                producer.getClass().getMethod("setCompressType", type)
                    .invoke(producer, type.getMethod("of", String.class).invoke(null, words[4]));
                // and on as
            case "large":
                byte[] unit = message.getBody();
                byte[] body = new byte[Integer.parseInt(words[3])];
                for (int at = 0; at < body.length; at++) {
                    body[at] = unit[at % unit.length];
                }
                message.setBody(body);
                return sent(producer.send(message));
            case "batch":
                List<Message> batch = new ArrayList<>();
                for (String each : Arrays.asList(words).subList(2, words.length)) {
                    batch.add(new Message(topic, "tag", each.getBytes(StandardCharsets.UTF_8)));
                }
                return sent(producer.send(batch));
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static Message timed(Message message, String setter, String value) throws ReflectiveOperationException {
        Message.class.getMethod(setter, long.class).invoke(message, Long.parseLong(value));
        return message;
    }

    private static String sent(SendResult result) throws ReflectiveOperationException {
        Object handle = null;
        try {
            handle = SendResult.class.getMethod("getRecallHandle").invoke(result);
        } catch (NoSuchMethodException older) {
            // this client knows no recalls
        }
        return "sent " + result.getMsgId() + " " + result.getMessageQueue().getQueueId() + " "
            + result.getQueueOffset() + " " + (handle == null ? "-" : handle);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
