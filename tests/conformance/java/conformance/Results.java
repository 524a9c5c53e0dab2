package conformance;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;

/** A line on standard output for each test that has ended, at once: "@result", status, seconds, name, first line of the reason. */
public final class Results implements TestExecutionListener {

    private final Map<String, Long> begun = new ConcurrentHashMap<>();

    @Override
    public void executionStarted(TestIdentifier test) {
        begun.put(test.getUniqueId(), System.nanoTime());
        if (test.isTest()) WorkerProcess.journal("test " + test.getDisplayName());
    }

    @Override
    public void executionFinished(TestIdentifier test, TestExecutionResult result) {
        // A class or an engine is told of only when it failed by itself, before or after its tests.
        if (!test.isTest() && result.getStatus() == TestExecutionResult.Status.SUCCESSFUL) return;
        double seconds = (System.nanoTime() - begun.getOrDefault(test.getUniqueId(), System.nanoTime())) / 1e9;
        String reason = result.getThrowable().map(t -> t.toString().lines().findFirst().orElse("")).orElse("");
        String line = String.format("@result\t%s\t%.1f\t%s\t%s", result.getStatus(), seconds,
            test.getDisplayName(), reason.replace('\t', ' '));
        System.out.println(line);
        WorkerProcess.journal(line);
    }
}
