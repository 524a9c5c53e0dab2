package conformance;

import java.io.IOException;
import java.io.OutputStream;
import java.io.StringReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.time.LocalTime;
import java.time.format.DateTimeFormatter;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;

/**
 * One process of the worker under test: its properties file, its log, its pid.
 *
 * <p>System properties say what is run: {@code conformance.command}, a word on each line, {@code {properties}} standing
 * for the file; {@code conformance.properties}, lines that are added to that; {@code conformance.folder}, where files and
 * logs go. What happens to each process is noted in
 * {@code processes.log} there, so that a report can prove which program ran.
 */
public final class WorkerProcess {

    private static final Duration STOP = Duration.ofSeconds(60); // Connect itself is given 30 s by these tests
    private static final int LOG_LINES = 15;
    private static final DateTimeFormatter TIME = DateTimeFormatter.ofPattern("HH:mm:ss");
    private static final AtomicInteger STARTED = new AtomicInteger();
    private static final Path FOLDER = Path.of(System.getProperty("conformance.folder"));

    private final String name;
    private final Process process;
    private final Path log;

    private WorkerProcess(String name, Process process, Path log) {
        this.name = name;
        this.process = process;
        this.log = log;
    }

    public static WorkerProcess start(String label, Map<String, String> properties) {
        return start(label, properties, List.of());
    }

    /** Starts the command with {@code properties}, in Java's own format with its escapes, and {@code arguments} behind it. */
    public static WorkerProcess start(String label, Map<String, String> properties, List<String> arguments) {
        String name = String.format("%03d-%s", STARTED.incrementAndGet(), label.replaceAll("[^A-Za-z0-9._-]", "_"));
        Path file = FOLDER.resolve(name + ".properties");
        Path log = FOLDER.resolve(name + ".log");
        List<String> command = System.getProperty("conformance.command").lines()
            .map(word -> word.replace("{properties}", file.toString())).collect(Collectors.toList());
        command.addAll(arguments);
        Properties written = new Properties();
        properties.forEach((key, value) -> { if (value != null) written.setProperty(key, value); });
        try {
            written.load(new StringReader(System.getProperty("conformance.properties", "")));
            try (OutputStream out = Files.newOutputStream(file)) {
                written.store(out, name);
            }
            Process process = new ProcessBuilder(command).redirectErrorStream(true)
                .redirectOutput(log.toFile()).start();
            // Nothing is left behind when the tests' JVM is stopped.
            Runtime.getRuntime().addShutdownHook(new Thread(() -> kill(process)));
            journal("start " + name + " pid=" + process.pid() + " command=" + String.join(" ", command));
            return new WorkerProcess(name, process, log);
        } catch (IOException e) {
            journal("FAILED to start " + name + ": " + e);
            throw new IllegalStateException("cannot start " + command, e);
        }
    }

    /** Throws, with the end of its log, if the process has ended although nobody stopped it. */
    public void failIfDead() {
        if (process.isAlive()) return;
        journal("DEAD " + name + " exit=" + process.exitValue());
        throw new IllegalStateException(this + " has ended with " + process.exitValue() + "; " + log + " ends with:\n" + tail());
    }

    /** True if the process has ended within the time. */
    public boolean await(Duration time) {
        try {
            return process.waitFor(time.toMillis(), TimeUnit.MILLISECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            return false;
        }
    }

    /** SIGTERM, then SIGKILL; false if SIGKILL was needed. */
    public boolean stop() {
        if (!process.isAlive()) return true;
        long begin = System.nanoTime();
        // As the kernel knows it, and at its end, when any wrapper script has given way to the program.
        String program = process.info().command().orElse("?");
        process.destroy();
        boolean graceful = await(STOP);
        if (!graceful) {
            kill(process);
            await(Duration.ofSeconds(10));
        }
        journal(String.format("%s %s pid=%d program=%s exit=%d after %.1f s", graceful ? "stop" : "KILLED", name,
            process.pid(), program, process.exitValue(), (System.nanoTime() - begin) / 1e9));
        return graceful;
    }

    /** Appends a line to processes.log. */
    public static synchronized void journal(String line) {
        try {
            Files.writeString(FOLDER.resolve("processes.log"), TIME.format(LocalTime.now()) + " " + line + "\n",
                StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

    private static void kill(Process process) {
        process.descendants().forEach(ProcessHandle::destroyForcibly);
        process.destroyForcibly();
    }

    private String tail() {
        try {
            List<String> lines = Files.readAllLines(log, StandardCharsets.ISO_8859_1);
            return String.join("\n", lines.subList(Math.max(0, lines.size() - LOG_LINES), lines.size()));
        } catch (IOException e) {
            return "(no log: " + e + ")";
        }
    }

    @Override
    public String toString() {
        return name + " (pid " + process.pid() + ")";
    }
}
