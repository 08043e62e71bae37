package rocketbox;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.core.RocketMQReplyListener;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.stereotype.Service;

/**
 * A service of rocketmq-spring: its reply listener answers the topic {@code answer.topic}, and each line of the input
 * is sent by {@code sendAndReceive} to the topic {@code ask.topic}. The topics are given as Spring's settings are.
 *
 * <p>Prints {@code joined} when it has started, and behind each line {@code < BODY} of its reply, or {@code failed};
 * ends when its input does.
 */
@SpringBootApplication
public class SpringReplies {
    @Service
    @RocketMQMessageListener(topic = "${answer.topic}", consumerGroup = "${answer.topic}-answers")
    public static class Answers implements RocketMQReplyListener<String, String> {
        @Override
        public String onMessage(String request) {
            return "spring:" + request;
        }
    }

    public static void main(String[] arguments) throws Exception {
        ConfigurableApplicationContext context = SpringApplication.run(SpringReplies.class, arguments);
        RocketMQTemplate template = context.getBean(RocketMQTemplate.class);
        String topic = context.getEnvironment().getRequiredProperty("ask.topic");
        say("joined");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            try {
                say("< " + template.sendAndReceive(topic, line, String.class, 12_000));
            } catch (RuntimeException error) {
                error.printStackTrace();
                say("failed");
            }
        }
        System.exit(SpringApplication.exit(context));
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
