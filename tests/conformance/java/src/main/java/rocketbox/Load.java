package rocketbox;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Loads on a broker from Apache's own Java client: sends behind a semaphore or one-way, or a push consumer that counts.
 * Each line of the standard input is one, and a client of its own; the virtual machine stays the same, with all that it
 * has compiled:
 *
 * <pre>
 * produce NAME_SERVER TOPIC WARM_UP MESSAGES IN_FLIGHT BODY_BYTES
 * oneway NAME_SERVER TOPIC WARM_UP MESSAGES BODY_BYTES
 * consume NAME_SERVER TOPIC WARM_UP MESSAGES GROUP
 * blocking NAME_SERVER TOPIC WARM_UP MESSAGES THREADS BODY_BYTES
 * transactions NAME_SERVER TOPIC WARM_UP MESSAGES THREADS BODY_BYTES
 * requests NAME_SERVER TOPIC WARM_UP MESSAGES THREADS BODY_BYTES
 * </pre>
 *
 * Transactions have no local work and are committed; requests are answered with their own body by a consumer of this
 * process.
 *
 * Prints the line {@code {"warm": true}} when the first WARM_UP messages are through, then MESSAGES more are measured, and
 * one line tells what came out: {@code {"messages": 200000, "seconds": 7.1, "failures": 0}}. Whoever wants the broker's
 * CPU time, or the client's, reads it at both lines. {@code {"idle": true}} says that the load's client has stopped.
 */
public final class Load {
    private static final int SEND_TIMEOUT_MS = 30_000; // a loaded machine must not turn into failures
    private static final int FIRST_ATTEMPTS = 10;
    private static final int ONEWAY_AHEAD = 2_000; // Apache's broker refuses sends behind 10,000 that wait, one-way ones without a word

    public static void main(String[] arguments) throws Exception {
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                run(line.split(" "));
                say("{\"idle\": true}");
            }
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1); // the client's threads would keep the process alive
        }
        System.exit(0);
    }

    private static void run(String[] words) throws Exception {
        String nameServer = words[1];
        String topic = words[2];
        int warmUp = Integer.parseInt(words[3]);
        int messages = Integer.parseInt(words[4]);
        if (words[0].equals("produce")) {
            int inFlight = Integer.parseInt(words[5]);
            produce(nameServer, topic, warmUp, messages, inFlight, Integer.parseInt(words[6]));
        } else if (words[0].equals("oneway")) {
            oneway(nameServer, topic, warmUp, messages, Integer.parseInt(words[5]));
        } else if (words[0].equals("consume")) {
            consume(nameServer, topic, warmUp, messages, words[5]);
        } else {
            int threads = Integer.parseInt(words[5]);
            byte[] body = new byte[Integer.parseInt(words[6])];
            Arrays.fill(body, (byte) 'x');
            if (words[0].equals("blocking")) {
                blocking(nameServer, topic, warmUp, messages, threads, body);
            } else if (words[0].equals("transactions")) {
                transactions(nameServer, topic, warmUp, messages, threads, body);
            } else {
                requests(nameServer, topic, warmUp, messages, threads, body);
            }
        }
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static void sayResult(long messages, long startedNs, long failures) {
        double seconds = (System.nanoTime() - startedNs) / 1e9;
        say(String.format(java.util.Locale.ROOT, "{\"messages\": %d, \"seconds\": %.6f, \"failures\": %d}",
            messages, seconds, failures));
    }

    private static void produce(String nameServer, String topic, int warmUp, int messages, int inFlight, int bodyBytes)
        throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("load-producer");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.setRetryTimesWhenSendAsyncFailed(0); // a failure is counted, not hidden
        producer.start();
        byte[] body = new byte[bodyBytes];
        Arrays.fill(body, (byte) 'x');
        first(() -> producer.send(new Message(topic, "A", "first", body))); // many at once would each ask for the topic
        AtomicLong failures = new AtomicLong();
        sendAll(producer, topic, body, warmUp, inFlight, failures);
        failures.set(0); // a broker that is not warm may be late
        say("{\"warm\": true}");
        long started = System.nanoTime();
        sendAll(producer, topic, body, messages, inFlight, failures);
        sayResult(messages, started, failures.get());
        producer.shutdown();
    }

    private static void oneway(String nameServer, String topic, int warmUp, int messages, int bodyBytes)
        throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("load-producer");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.start();
        byte[] body = new byte[bodyBytes];
        Arrays.fill(body, (byte) 'x');
        first(() -> producer.send(new Message(topic, "A", "first", body)));
        sendAllOneway(producer, topic, body, warmUp);
        say("{\"warm\": true}");
        long started = System.nanoTime();
        long failures = sendAllOneway(producer, topic, body, messages);
        sayResult(messages, started, failures);
        producer.shutdown();
    }

    /**
     * An answered send comes last: when its answer is here the others have left, and the broker has read them. One now
     * and then keeps what has not left yet so short that the last one is answered in time.
     */
    private static long sendAllOneway(DefaultMQProducer producer, String topic, byte[] body, int messages)
        throws Exception {
        long failures = 0;
        for (int number = 0; number < messages; number++) {
            try {
                producer.sendOneway(new Message(topic, "A", "k" + number, body));
            } catch (org.apache.rocketmq.remoting.exception.RemotingTooMuchRequestException tooMany) {
                failures++;
            }
            if (number % ONEWAY_AHEAD == ONEWAY_AHEAD - 1) {
                producer.send(new Message(topic, "A", "between", body));
            }
        }
        producer.send(new Message(topic, "A", "last", body));
        return failures;
    }

    private static void sendAll(
        DefaultMQProducer producer, String topic, byte[] body, int messages, int inFlight, AtomicLong failures)
        throws Exception {
        Semaphore places = new Semaphore(inFlight);
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                places.release();
            }

            @Override
            public void onException(Throwable error) {
                if (failures.incrementAndGet() == 1) {
                    System.err.println("the first send that failed: " + error);
                }
                places.release();
            }
        };
        for (int number = 0; number < messages; number++) {
            places.acquire();
            producer.send(new Message(topic, "A", "k" + number, body), callback);
        }
        places.acquire(inFlight); // all are answered
    }

    private interface Send {
        void send(Message message) throws Exception;
    }

    private interface Attempt {
        void run() throws Exception;
    }

    /** A busy machine may need longer for the first answers than the client waits. */
    private static void first(Attempt attempt) throws Exception {
        for (int number = 1; ; number++) {
            try {
                attempt.run();
                return;
            } catch (Exception error) {
                if (number == FIRST_ATTEMPTS) {
                    throw error;
                }
            }
        }
    }

    /** Threads that each wait for their own sends. */
    private static void fromThreads(String topic, int warmUp, int messages, int threads, byte[] body, Send send)
        throws Exception {
        first(() -> send.send(new Message(topic, "A", "first", body)));
        inThreads(topic, warmUp, threads, body, send);
        say("{\"warm\": true}");
        long started = System.nanoTime();
        long failures = inThreads(topic, messages, threads, body, send);
        sayResult(messages, started, failures);
    }

    private static long inThreads(String topic, int messages, int threads, byte[] body, Send send) throws Exception {
        AtomicLong next = new AtomicLong();
        AtomicLong failures = new AtomicLong();
        Thread[] all = new Thread[threads];
        for (int thread = 0; thread < threads; thread++) {
            all[thread] = new Thread(() -> {
                for (long number = next.getAndIncrement(); number < messages; number = next.getAndIncrement()) {
                    try {
                        send.send(new Message(topic, "A", "k" + number, body));
                    } catch (Exception error) {
                        if (failures.incrementAndGet() == 1) {
                            System.err.println("the first send that failed: " + error);
                        }
                    }
                }
            });
            all[thread].start();
        }
        for (Thread thread : all) {
            thread.join();
        }
        return failures.get();
    }

    private static void blocking(String nameServer, String topic, int warmUp, int messages, int threads, byte[] body)
        throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("load-producer");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.start();
        fromThreads(topic, warmUp, messages, threads, body, producer::send);
        producer.shutdown();
    }

    private static void transactions(
        String nameServer, String topic, int warmUp, int messages, int threads, byte[] body) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("load-transactions");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
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
        fromThreads(topic, warmUp, messages, threads, body,
            message -> producer.sendMessageInTransaction(message, null));
        producer.shutdown();
    }

    private static void requests(String nameServer, String topic, int warmUp, int messages, int threads, byte[] body)
        throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("load-producer");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.start();
        first(() -> producer.send(new Message(topic, "A", "first", body))); // makes the topic
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(topic + "-answers");
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch) {
                if (MessageUtil.getReplyToClient(message) == null) {
                    continue;
                }
                try {
                    producer.send(MessageUtil.createReplyMessage(message, message.getBody()), SEND_TIMEOUT_MS);
                } catch (Exception error) {
                    error.printStackTrace();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        fromThreads(topic, warmUp, messages, threads, body, message -> producer.request(message, SEND_TIMEOUT_MS));
        consumer.shutdown();
        producer.shutdown();
    }

    private static void consume(String nameServer, String topic, int warmUp, int messages, String group)
        throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setAwaitTerminationMillisWhenShutdown(10_000); // the last batch is counted before its offset is noted
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        AtomicLong seen = new AtomicLong();
        AtomicLong started = new AtomicLong();
        AtomicLong damaged = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        consumer.registerMessageListener(new MessageListenerConcurrently() {
            @Override
            public ConsumeConcurrentlyStatus consumeMessage(
                List<MessageExt> batch, ConsumeConcurrentlyContext context) {
                for (MessageExt message : batch) {
                    if (message.getBody().length == 0) {
                        damaged.incrementAndGet();
                    }
                    long count = seen.incrementAndGet();
                    if (count == warmUp) {
                        started.set(System.nanoTime());
                        say("{\"warm\": true}");
                    } else if (count == (long) warmUp + messages) {
                        sayResult(messages, started.get(), damaged.get());
                        done.countDown();
                    }
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
        });
        consumer.start();
        done.await();
        consumer.shutdown();
    }
}
