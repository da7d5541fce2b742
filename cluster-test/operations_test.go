package clustertest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/cluster-test/machines"
)

// cleanUpAfter is short, for --dead-server-cleanup-after. All servers have it until the dead one is
// gone: with three voters it must do nothing, however long one is dead.
const cleanUpAfter = 8 * time.Second

// drilled are the machines of TestOperations: three servers, one that comes later, and an agent. s1
// and s2 run no pods.
type drilled struct {
	*drill
	s1, s2, s3, s4, agent *machines.Machine

	pod  string // that runs on the agent all the time
	pids []int  // its processes
}

// The life of one cluster, by docs/operations.md: its procedures are performed, word for word, on
// machines that have the addresses of that page. Every command of the page is performed, or another
// test that performs it is named.
func TestOperations(t *testing.T) {
	t.Parallel()
	d := &drilled{drill: newDrill(t)}
	clean := " --dead-server-cleanup-after " + cleanUpAfter.String()
	d.s1 = d.machine("s1", "10.0.0.1", 0, "--no-node --snapshot-unsealed"+clean)
	d.s2 = d.machine("s2", "10.0.0.2", 0, "--no-node"+clean)
	d.s3 = d.machine("s3", "10.0.0.3", 0, clean)
	d.s4 = d.machine("s4", "10.0.0.4", 0, "--no-node"+clean)
	d.agent = d.machine("a1", "10.0.0.21", 0, "")
	for _, m := range []*machines.Machine{d.s3, d.agent} {
		d.flags[m.Name] += " --cgroup-root " + m.CgroupRoot()
	}
	for _, s := range []struct {
		name    string
		perform func()
	}{
		{"begin", d.begin},
		{"demote, promote, hand over", d.takeOut},
		{"remove for good, join again", d.removeForGood},
		{"dead server cleaned up", d.cleanedUp},
		{"replace", d.replace},
		{"another kind of log", d.otherLog},
		{"new addresses", d.newAddresses},
		{"recover", d.recover},
		{"back up and restore", d.backUp},
		{"interrupt", d.interrupt},
		{"rebuild from nothing", d.rebuild},
	} {
		d.stage(s.name, s.perform)
	}
	d.complete()
}

func (d *drilled) begin() {
	d.start(d.s1, "barque server")
	d.ready(d.s1)
	d.give(d.shell(d.s1, "barque token create --role server --uses 2"), d.s2, d.s3)
	d.give(d.shell(d.s1, "barque token create"), d.agent)
	for _, m := range []*machines.Machine{d.s2, d.s3} {
		d.start(m, "barque server --join https://10.0.0.1:6443 --token-file /etc/barque/token")
	}
	d.start(d.agent, "barque agent --server https://10.0.0.1:6443 --token-file /etc/barque/token")
	d.ready(d.s2, d.s3)
	d.whole(d.s1, d.s2, d.s3)
	d.note(d.s1, "begin")
	d.tokens()
	pod := d.drill.pod(d.s1, "stays", "a1")
	d.pod, d.pids = pod.Name, ContainerPIDs(d, pod.Status.ContainerStatuses[0].ContainerID)
}

func (d *drilled) tokens() {
	p := d.procedure("Join tokens")
	p.run(d.s1, `barque token create --role server --ttl 1h --uses 1 --description "rack 7"`)
	list := p.run(d.s1, "barque token ls")
	for line := range strings.Lines(list) {
		if strings.Contains(line, "rack 7") {
			p.run(d.s1, "barque token delete ID", "ID", strings.Fields(line)[0])
		}
	}
	if after := d.shell(d.s1, "barque token ls"); strings.Contains(after, "rack 7") {
		d.Errorf("a token that was deleted is listed:\n%s", after)
	}
}

// podStays fails when the pod on the agent has changed.
func (d *drilled) podStays(asked *machines.Machine) {
	d.Helper()
	var pod *corev1.Pod
	Eventually(d, deadline, "the pod that was to run on", func(ctx context.Context) (err error) {
		pod, err = d.api(asked).CoreV1().Pods("default").Get(ctx, d.pod, metav1.GetOptions{})
		return err
	})
	s := pod.Status.ContainerStatuses
	if len(s) != 1 || s[0].RestartCount != 0 || s[0].State.Running == nil {
		d.Fatalf("the pod that was to run on is %+v", pod.Status)
	}
	if pids := ContainerPIDs(d, s[0].ContainerID); !slices.Equal(pids, d.pids) {
		d.Errorf("the pod that was to run on has the processes %v, it had %v", pids, d.pids)
	}
}

func (d *drilled) takeOut() {
	p := d.procedure("Take a server out for a while")
	p.insist(d.s1, "barque cluster demote s3")
	// it hears of it after the one that did it
	Eventually(d, deadline, "s3 says that it has no vote", func(context.Context) error {
		status, err := d.drill.status(d.s1)
		if err != nil {
			return err
		}
		for _, m := range status.Members {
			if m.Name == "s3" && (m.Store == nil || m.Store.State != "nonvoter") {
				return fmt.Errorf("after demote s3 is %+v", m.Store)
			}
		}
		return nil
	})
	p.insist(d.s1, "barque cluster promote s3")
	d.whole(d.s1, d.s2, d.s3)
	d.leads(d.s2, d.s1, "barque cluster transfer-leader s2")
	d.leads(d.s1, d.s2, p.words("barque cluster transfer-leader s1"))
}

// leads makes a server lead by a command that is given on another one; again when there is an
// election after it.
func (d *drilled) leads(m, on *machines.Machine, transfer string) {
	d.Helper()
	Eventually(d, deadline, m.Name+" leads", func(context.Context) error {
		if r := d.try(on, transfer); r.Error != nil {
			return r.Error
		}
		status, err := d.drill.status(m)
		if err == nil && status.Leader != m.Name {
			err = fmt.Errorf("%s leads", status.Leader)
		}
		return err
	})
}

func (d *drilled) removeForGood() {
	d.shell(d.s1, "barque kubectl cordon a1 && barque kubectl create -f - <<'END'"+hello("web", 1, "none")+"END")
	d.shell(d.s1, "barque kubectl rollout status deployment/web --timeout=2m && barque kubectl uncordon a1")
	p := d.procedure("Remove a server for good")
	p.run(d.s1, "barque kubectl drain s3 --ignore-daemonsets --delete-emptydir-data")
	pods, err := d.api(d.s1).CoreV1().Pods("default").List(d.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	d.must(err)
	for _, pod := range pods.Items {
		if pod.Spec.NodeName == "s3" && pod.DeletionTimestamp == nil {
			d.Errorf("after drain %s is still on s3", pod.Name)
		}
	}
	if out := p.insist(d.s3, "barque cluster leave"); !strings.Contains(out, "s3 was taken out") {
		d.Errorf("leave says %q", out)
	}
	if code := d.ended(d.s3); code != 3 {
		d.Errorf("barque on a server that has left ends with %d, want 3", code)
	}
	p.run(d.s1, "barque kubectl delete node s3")
	d.whole(d.s1, d.s2)
	d.give(d.shell(d.s1, "barque token create --role server"), d.s3)
	p.serve(d.s3, "barque server --wipe --join https://10.0.0.1:6443 --token-file /etc/barque/token")
	d.ready(d.s3)
	d.whole(d.s1, d.s2, d.s3)
}

// One of three that is dead stays, until a fourth has its vote.
func (d *drilled) cleanedUp() {
	d.must(d.s3.Off())
	died := time.Now()
	var silent time.Duration
	Eventually(d, deadline, "s3 has been dead for long", func(context.Context) error {
		status, err := d.drill.status(d.s1)
		if err != nil {
			return err
		}
		if countServers(status) != 3 {
			d.Fatalf("one of three was taken out, %v after its death", silent)
		}
		if silent = time.Since(died); silent < cleanUpAfter+3*time.Second {
			return fmt.Errorf("dead for %v", silent)
		}
		return nil
	})
	d.give(d.shell(d.s1, "barque token create --role server"), d.s4)
	d.start(d.s4, "barque server --join https://10.0.0.1:6443 --token-file /etc/barque/token")
	d.ready(d.s4)
	d.whole(d.s1, d.s2, d.s4)
	d.shell(d.s1, "barque kubectl delete node s3 --ignore-not-found")
	for name, flags := range d.flags {
		d.flags[name] = strings.ReplaceAll(flags, " --dead-server-cleanup-after "+cleanUpAfter.String(), "")
	}
}

func (d *drilled) replace() {
	d.must(d.s4.Off())
	d.must(d.s4.NewDisk())
	d.must(d.s4.On())
	d.give(d.shell(d.s1, "barque token create --role server"), d.s4)
	d.flags["s4"] += " --raft-log-store wal"
	p := d.procedure("Replace a lost server")
	p.serve(d.s4, "barque server --name s3 --join https://10.0.0.1:6443 --token-file /etc/barque/token --replace", "s3",
		"s4")
	d.ready(d.s4)
	d.whole(d.s1, d.s2, d.s4)
	d.logKind(d.s4, "wal")
}

// logKind fails when the log of a server is not of the kind.
func (d *drilled) logKind(m *machines.Machine, kind string) {
	d.Helper()
	found, err := filepath.Glob(m.Path(machines.DataDir + "/store/log/" + kind + "-*"))
	if err != nil || len(found) != 1 {
		d.Errorf("%s has the logs %q of kind %s: %v", m.Name, found, kind, err)
	}
}

func (d *drilled) otherLog() {
	p := d.procedure("Another kind of log")
	for _, kind := range []string{"wal", "boltdb"} {
		d.stop(d.s2)
		p.serve(d.s2, "barque server --raft-log-store wal", "wal", kind)
		d.ready(d.s2)
		d.whole(d.s1, d.s2, d.s4)
		d.logKind(d.s2, kind)
		d.note(d.s2, "after-"+kind)
	}
	d.noted(d.s1, "begin", "after-wal", "after-boltdb")
}

func (d *drilled) newAddresses() {
	servers := []*machines.Machine{d.s1, d.s2, d.s4}
	d.stop(append(servers, d.agent)...)
	for i, address := range []string{"10.1.0.1", "10.1.0.2", "10.1.0.3"} {
		d.must(servers[i].SetAddress(network(address)))
	}
	p := d.procedure("New addresses")
	const command = "barque server --node-ip 10.1.0.1 --peers 10.1.0.2,10.1.0.3"
	p.serve(d.s1, command)
	p.serve(d.s2, command, "10.1.0.1", "10.1.0.2", "10.1.0.2", "10.1.0.1")
	p.serve(d.s4, command, "10.1.0.1", "10.1.0.3", "10.1.0.3", "10.1.0.1")
	d.ready(servers...)
	d.whole(servers...)
	d.noted(d.s4, "begin")
	d.start(d.agent, "barque agent --server https://10.1.0.1:6443")
	d.drill.pod(d.s2, "new-addresses", "a1")
	d.podStays(d.s2)
	// From now on --peers is not needed.
	d.stop(d.s2)
	d.procedure("Knowing it in seconds").serve(d.s2, "barque server --fast-failure-detection")
	d.ready(d.s2)
	d.whole(servers...)
}

// s2 and s4 are lost for good; of s2 the disk is left.
func (d *drilled) recover() {
	before := d.whole(d.s1, d.s2, d.s4)
	d.note(d.s1, "before-recovery")
	d.must(errors.Join(d.s2.Off(), d.s4.Off()))
	ready := d.procedure("Is a server ready?")
	Eventually(d, deadline, "s1 says why it is not ready", func(context.Context) error {
		r := d.try(d.s1,
			ready.words("barque kubectl --kubeconfig /var/lib/barque/admin.kubeconfig get --raw /readyz/store"))
		if said := r.Out + r.Err; !contains(said, "no leader has been known for",
			"of the 3 servers with a vote must reach each other") {
			return fmt.Errorf("it says %s", said)
		}
		return nil
	})
	d.stop(d.s1)
	disk := filepath.Join(filepath.Dir(d.s2.Log()), "disk")
	if out, err := exec.Command("cp", "-a", disk, d.s1.Path("/mnt/s2")).CombinedOutput(); err != nil {
		d.Fatalf("%v: %s", err, out)
	}
	p := d.procedure("Recover from a lost quorum")
	if out := p.run(d.s1,
		"barque cluster recover --inspect --data-dir /var/lib/barque --data-dir /mnt/s2"); !contains(out, "s1", "s2",
		"has the most: recover that one") {
		d.Errorf("inspect says\n%s", out)
	}
	p.run(d.s1, "barque cluster recover --data-dir /var/lib/barque --data-dir /mnt/s2")
	d.start(d.s1, "barque server")
	d.ready(d.s1)
	after := d.whole(d.s1)
	if after.ID == before.ID || after.Revision < before.Revision+1<<30 {
		d.Errorf("before: cluster %s at revision %d; after: %s at %d", before.ID, before.Revision, after.ID,
			after.Revision)
	}
	d.noted(d.s1, "begin", "before-recovery")
	// The machine of s2 was mended; it has its disk.
	d.must(d.s2.On())
	// Against the docs an operator starts it as it was.
	d.start(d.s2, "barque server")
	if code := d.ended(d.s2); code != 3 {
		d.Errorf("an old server ends with %d, want 3", code)
	}
	d.give(p.run(d.s1, "barque token create --role server"), d.s2)
	d.must(d.s4.NewDisk())
	d.must(d.s4.On())
	d.give(d.shell(d.s1, "barque token create --role server"), d.s4)
	p.serve(d.s2, "barque server --wipe --join https://10.0.0.1:6443 --token-file /etc/barque/token", "10.0.0.1",
		"10.1.0.1")
	d.start(d.s4, "barque server --join https://10.1.0.1:6443 --token-file /etc/barque/token")
	d.ready(d.s2, d.s4)
	d.whole(d.s1, d.s2, d.s4)
	d.agentFollows()
	d.drill.pod(d.s4, "recovered", "a1")
	d.podStays(d.s2)
}

// agentFollows waits until the agent is one of the cluster of s1.
func (d *drilled) agentFollows() {
	d.Helper()
	Eventually(d, 2*deadline, "the agent follows", func(context.Context) error {
		status, err := d.drill.status(d.s1)
		if err != nil {
			return err
		}
		for _, m := range status.Members {
			if m.Name == "a1" && m.Gossip == "alive" {
				return nil
			}
		}
		return fmt.Errorf("the members are %+v", status.Members)
	})
}

func (d *drilled) backUp() {
	d.note(d.s1, "saved")
	key := d.procedure("The key")
	if out := key.run(d.s1, "barque snapshot save --unsealed"); !contains(out, "saved and verified") {
		d.Errorf("save says %s", out)
	}
	d.note(d.s1, "saved-sealed") // a backup is named by its second and its revision
	key.run(d.s1, "(umask 077; barque snapshot key > backup.key)")
	d.procedure("Backups").run(d.s1, "barque snapshot save --key-file backup.key")
	look := d.procedure("Looking at backups")
	if out := look.run(d.s1, "barque snapshot ls"); !contains(out, "server s1", "every 12h") {
		d.Errorf("ls says %s", out)
	}
	if out := look.run(d.s1, "barque snapshot ls --dir ."); !contains(out, "yes, sealed", " no ") {
		d.Errorf("ls --dir says %s", out)
	}
	sealed := d.shell(d.s1, "ls -t *.backup | head -1")
	file := strings.TrimSpace(sealed)
	if out := look.run(d.s1, "barque snapshot inspect FILE --key-file backup.key", "FILE", file); !contains(out,
		"everything", "ca.key") {
		d.Errorf("inspect says %s", out)
	}
	d.note(d.s1, "later")
	restore := d.procedure("Restoring a cluster that runs")
	restore.run(d.s1, "barque snapshot save before-restore.backup --key-file backup.key")
	restore.run(d.s1, "barque snapshot restore FILE --key-file backup.key", "FILE", file)
	d.noted(d.s1, "saved")
	Eventually(d, deadline, "what was written after the backup is gone", func(ctx context.Context) error {
		if _, err := d.api(d.s1).CoreV1().ConfigMaps("default").Get(ctx, "later",
			metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("reading it: %v", err)
		}
		return nil
	})
	d.shell(d.s1, "mv "+file+" FILE.backup")
	d.whole(d.s1, d.s2, d.s4)
	d.podStays(d.s1)
}

// All servers are lost; s1 comes back with an empty disk. The others were not lost after all: an
// operator starts them as they were, and they are a majority of the old cluster. s2 gets an empty
// disk then. The agent and its pod go on.
func (d *drilled) rebuild() {
	for _, m := range []*machines.Machine{d.s1, d.s2, d.s4} {
		d.must(m.Off())
	}
	d.must(errors.Join(d.s1.NewDisk(), d.s1.On(), d.s2.On(), d.s4.On()))
	for _, m := range []*machines.Machine{d.s2, d.s4} {
		d.start(m, "barque server")
	}
	d.ready(d.s2, d.s4)
	p := d.procedure("Rebuilding a cluster from nothing")
	p.serve(d.s1, "barque server --restore-from FILE --restore-key-file backup.key", "FILE", "FILE.backup")
	for _, m := range []*machines.Machine{d.s2, d.s4} {
		if code := d.ended(m); code != 3 {
			d.Errorf("an old server, %s, ends with %d, want 3", m.Name, code)
		}
		d.start(m, "barque server") // a restart changes nothing
		if code := d.ended(m); code != 3 {
			d.Errorf("an old server, %s, that was started again ends with %d, want 3", m.Name, code)
		}
		d.must(m.Off())
	}
	d.ready(d.s1)
	d.noted(d.s1, "saved")
	d.agentFollows()
	d.podStays(d.s1)
	d.must(errors.Join(d.s2.NewDisk(), d.s2.On()))
	token := strings.TrimSpace(p.run(d.s1, "barque token create --role server"))
	p.serve(d.s2, "barque server --join https://ADDRESS:6443 --token TOKEN", "ADDRESS", "10.1.0.1", "TOKEN", token)
	d.stop(d.agent)
	d.give(d.shell(d.s1, "barque token create"), d.agent)
	d.start(d.agent, "barque agent --rejoin --server https://10.1.0.1:6443 --token-file /etc/barque/token")
	d.ready(d.s2)
	d.whole(d.s1, d.s2)
	d.drill.pod(d.s2, "rebuilt", "a1")
	d.podStays(d.s2)
}
