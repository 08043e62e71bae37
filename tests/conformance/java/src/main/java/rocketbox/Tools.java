package rocketbox;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * Apache's mqadmin, one command after the other: each line of the input is one, its words with tabs between them.
 *
 * <p>Prints what the command prints, errors too, and the line {@code -- done} behind it; ends when its input does. It
 * is called by name, for the client's jars, with which these programs are built, do not hold it.
 */
public final class Tools {
    public static void main(String[] arguments) throws Exception {
        System.setErr(System.out);
        Class<?> mqadmin = Class.forName("org.apache.rocketmq.tools.command.MQAdminStartup");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            mqadmin.getMethod("main", String[].class).invoke(null, (Object) line.split("\t"));
            System.out.println();
            System.out.println("-- done");
            System.out.flush();
        }
        System.exit(0); // a client's threads end seconds later
    }
}
