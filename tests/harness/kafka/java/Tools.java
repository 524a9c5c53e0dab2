import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;

/**
 * Load and Dump as often as they are asked for, in one JVM: its start costs more than what most tests move.
 *
 * <p>A line on stdin is OUTPUT_FILE, the program and its arguments, separated by tabs. What the program prints goes to
 * the file; then comes a line on stdout, "done" or "failed", and with the latter the stack trace is in the file.
 */
public final class Tools {
    private Tools() {}

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        var questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            String[] words = line.split("\t");
            boolean done;
            try (OutputStream file = Files.newOutputStream(Path.of(words[0]));
                    PrintStream output = new PrintStream(file, false, StandardCharsets.UTF_8)) {
                System.setOut(output);
                done = run(words[1], Arrays.copyOfRange(words, 2, words.length), output);
            } finally {
                System.setOut(answers);
            }
            answers.println(done ? "done" : "failed");
            answers.flush();
        }
        System.exit(0);
    }

    private static boolean run(String program, String[] arguments, PrintStream output) {
        try {
            switch (program) {
                case "Load" -> Load.main(arguments);
                case "Dump" -> Dump.main(arguments);
                default -> throw new IllegalArgumentException(program);
            }
            return true;
        } catch (Exception error) {
            error.printStackTrace(output);
            return false;
        }
    }
}
