import java.io.FileOutputStream;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/**
 * Hadoop's own resource manager with one node manager: java YarnCluster.java FOLDER MEMORY_MIB
 *
 * <p>It writes yarn-site.xml and core-site.xml for clients into FOLDER/conf, then the file FOLDER/ready, and runs until it is
 * killed. The file system of the cluster is that of the machine.
 */
public final class YarnCluster {
  public static void main(String[] arguments) throws Exception {
    Path folder = Path.of(arguments[0]);
    YarnConfiguration conf = new YarnConfiguration();
    conf.set("fs.defaultFS", "file:///");
    conf.set("hadoop.tmp.dir", folder.resolve("tmp").toString());
    conf.setInt(YarnConfiguration.YARN_MINICLUSTER_NM_PMEM_MB, Integer.parseInt(arguments[1]));
    conf.setInt(YarnConfiguration.RM_SCHEDULER_MINIMUM_ALLOCATION_MB, 128);
    conf.setBoolean(YarnConfiguration.NM_VMEM_CHECK_ENABLED, false);
    conf.setBoolean(YarnConfiguration.NM_PMEM_CHECK_ENABLED, false);
    // A disk of a developer's machine may be nearly full.
    conf.setFloat(YarnConfiguration.NM_MAX_PER_DISK_UTILIZATION_PERCENTAGE, 100f);
    // Containers get the machine's own variables: Spark's executors need PATH and JAVA_HOME.
    conf.set(YarnConfiguration.NM_ENV_WHITELIST, "JAVA_HOME,PATH,HOME,LANG");
    // The share of the memory that drivers may use; the default is a tenth.
    conf.set("yarn.scheduler.capacity.maximum-am-resource-percent", "1.0");
    conf.set("yarn.scheduler.capacity.root.queues", "default");
    conf.set("yarn.scheduler.capacity.root.default.capacity", "100");

    MiniYARNCluster cluster = new MiniYARNCluster("mirrorflow", 1, 1, 1);
    cluster.init(conf);
    cluster.start();
    if (!cluster.waitForNodeManagersToConnect(60_000)) {
      throw new IllegalStateException("The node manager has not connected.");
    }
    Files.createDirectories(folder.resolve("conf"));
    for (String name : new String[] {"yarn-site.xml", "core-site.xml"}) {
      try (OutputStream stream = new FileOutputStream(folder.resolve("conf").resolve(name).toFile())) {
        new Configuration(cluster.getConfig()).writeXml(stream);
      }
    }
    Files.createFile(folder.resolve("ready"));
    Thread.currentThread().join();
  }
}
