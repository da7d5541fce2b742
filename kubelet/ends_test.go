package kubelet_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/procstat"
)

// ending is a container that ends on a signal file.
type ending struct {
	name    string
	script  string // run after the wait
	policy  v1.RestartPolicy
	memory  string // its limit
	blocked bool   // it cannot end before its output is read

	code   int32
	reason string
	log    string // the end of the log
}

// endings are the ways to end.
var endings = []ending{
	{name: "done", script: "echo last words", code: 0, reason: "Completed", log: "last words\n"},
	{name: "failed", script: "echo last words >&2; echo why > /dev/termination-log; exit 7", code: 7, reason: "Error",
		log: "last words\n"},
	{name: "killed", script: "exit 137", code: 137, reason: "Error"},
	{name: "code255", script: "exit 255", code: 255, reason: "Error"},
	{name: "full",
		script:  "i=0; while [ $i -lt 4000 ]; do echo 0123456789012345678901234567890123456789; i=$((i+1)); done; echo last words",
		blocked: true, code: 0, reason: "Completed", log: "last words\n"},
	{name: "oom", script: "x=x; while :; do x=$x$x; done", memory: "16Mi", code: 137, reason: "OOMKilled"},
	{name: "again", script: "[ -e /out/second ] && sleep 1000; touch /out/second; exit 9",
		policy: v1.RestartPolicyAlways, code: 9, reason: "Error"},
}

// create makes the pod.
func (e ending) create(f *fixture, suffix string) {
	f.t.Helper()
	out := e.out(f, suffix)
	if err := os.MkdirAll(out, 0o777); err != nil {
		f.t.Fatal(err)
	}
	policy := e.policy
	if policy == "" {
		policy = v1.RestartPolicyNever
	}
	pod := script(e.name+suffix, policy, nil, "while [ ! -e /out/end ]; do sleep 0.05; done; "+e.script)
	pod.Spec.Volumes = append(pod.Spec.Volumes,
		v1.Volume{Name: "out", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: out}}})
	c := &pod.Spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: "out", MountPath: "/out"})
	if e.memory != "" {
		c.Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse(e.memory)}
		c.Resources.Requests = c.Resources.Limits
	}
	f.create(pod)
}

// createAll makes the pods and waits until they run.
func createAll(f *fixture, all []ending, suffix string) {
	f.t.Helper()
	for _, e := range all {
		e.create(f, suffix)
	}
	for _, e := range all {
		f.eventually(e.name+suffix, "running", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodRunning })
	}
}

func (e ending) out(f *fixture, suffix string) string {
	return filepath.Join(f.dataDir, "out", e.name+suffix)
}

// end makes the container end.
func (e ending) end(f *fixture, suffix string) {
	if err := os.WriteFile(filepath.Join(e.out(f, suffix), "end"), nil, 0o666); err != nil {
		f.t.Fatal(err)
	}
}

// awaitEnd waits until the shim knows that the container has ended.
func (e ending) awaitEnd(f *fixture, suffix string) {
	f.t.Helper()
	_, id, _ := strings.Cut(f.get(e.name + suffix).Status.ContainerStatuses[0].ContainerID, "://")
	await.True(f.t, e.name+" has ended", func() bool {
		_, err := os.Stat(
			filepath.Join(f.dataDir, "containerd/state/io.containerd.runtime.v2.task/k8s.io", id, "exit.json"))
		return err == nil
	})
}

// check waits until the end of the container is known, and compares it.
func (e ending) check(f *fixture, suffix string, logs bool) {
	f.t.Helper()
	var ended *v1.ContainerStateTerminated
	pod := f.eventually(e.name+suffix, "ended", func(p *v1.Pod) bool {
		if len(p.Status.ContainerStatuses) == 0 {
			return false
		}
		s := p.Status.ContainerStatuses[0]
		if ended = s.State.Terminated; ended == nil {
			ended = s.LastTerminationState.Terminated
		}
		if e.policy == v1.RestartPolicyAlways {
			return ended != nil && s.State.Running != nil
		}
		return ended != nil && p.Status.Phase != v1.PodRunning
	})
	if ended.ExitCode != e.code || ended.Reason != e.reason {
		f.t.Errorf("%s%s: ended with %d, %q; want %d, %q", e.name, suffix, ended.ExitCode, ended.Reason, e.code,
			e.reason)
	}
	if ended.FinishedAt.IsZero() || ended.FinishedAt.Before(&ended.StartedAt) {
		f.t.Errorf("%s%s: from %v to %v", e.name, suffix, ended.StartedAt, ended.FinishedAt)
	}
	if e.name == "failed" && ended.Message != "why\n" {
		f.t.Errorf("%s%s: message %q", e.name, suffix, ended.Message)
	}
	if want := map[bool]v1.PodPhase{true: v1.PodSucceeded, false: v1.PodFailed}[e.code == 0]; e.policy == "" &&
		pod.Status.Phase != want {
		f.t.Errorf("%s%s: the pod is %s, want %s", e.name, suffix, pod.Status.Phase, want)
	}
	if e.policy == v1.RestartPolicyAlways && pod.Status.ContainerStatuses[0].RestartCount != 1 {
		f.t.Errorf("%s%s: %d restarts, want 1", e.name, suffix, pod.Status.ContainerStatuses[0].RestartCount)
	}
	if got := f.log(pod, "c0", 0); logs && !strings.HasSuffix(got, e.log) {
		f.t.Errorf("%s%s: its log ends with %q, want %q", e.name, suffix, got[max(0, len(got)-60):], e.log)
	}
}

// TestEndsWhileNothingRuns has containers end while neither the kubelet nor containerd runs. Their
// exit codes, times, reasons, messages and logs are as if both had been there.
func TestEndsWhileNothingRuns(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	f := newFixture(t)
	stop := f.start()
	createAll(f, endings, "")
	stop()
	f.stopRuntime()
	began := time.Now()
	for _, e := range endings {
		e.end(f, "")
	}
	for _, e := range endings {
		if !e.blocked {
			e.awaitEnd(f, "")
		}
	}
	over := time.Now()
	f.startRuntime()
	f.start()
	for _, e := range endings {
		e.check(f, "", true)
	}
	at := f.get("done").Status.ContainerStatuses[0].State.Terminated.FinishedAt.Time
	if at.Before(began.Truncate(time.Second)) || at.After(over) {
		t.Errorf("finished at %v, want between %v and %v", at, began, over)
	}
}

// TestEndsBeforeABoot has containers end while neither the kubelet nor containerd runs. Then the
// machine boots, so that no shim is left.
func TestEndsBeforeABoot(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	f := newFixture(t)
	stop := f.start()
	createAll(f, endings[:2], "")
	stop()
	f.stopRuntime()
	for _, e := range endings[:2] {
		e.end(f, "")
	}
	for _, e := range endings[:2] {
		e.awaitEnd(f, "")
	}
	f.killShims()
	mark := filepath.Join(f.dataDir, "containerd/boot-id")
	if err := os.WriteFile(mark, []byte("an earlier one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.startRuntime()
	f.start()
	for _, e := range endings[:2] {
		e.check(f, "", false)
	}
}

// killShims kills all shims of the node and the processes in their containers.
func (f *fixture) killShims() {
	all, err := procstat.All()
	if err != nil {
		f.t.Fatal(err)
	}
	for _, pid := range all {
		args, err := procstat.Args(pid)
		shim := err == nil && len(args) > 0 && strings.HasSuffix(args[0], "containerd-shim-runc-v2") &&
			strings.Contains(strings.Join(args, " "), f.dataDir)
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		inside := err == nil && bytes.Contains(groups, []byte(f.cgroup+"/"))
		if !shim && !inside {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			f.t.Fatal(err)
		}
		await.True(f.t, "a killed process is gone", func() bool {
			stat, err := procstat.Read(pid)
			return errors.Is(err, fs.ErrNotExist) || err == nil && !stat.Runs()
		})
	}
}

// TestEndsAtKills kills containerd again and again while containers end.
func TestEndsAtKills(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	f := newFixture(t)
	f.start()
	const rounds = 3
	for round := range rounds {
		suffix := fmt.Sprint(round)
		createAll(f, endings, suffix)
		for i, e := range endings {
			e.end(f, suffix)
			if i == round || i == len(endings)-1 {
				if err := f.killContainerd(); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, e := range endings {
			e.check(f, suffix, true)
		}
	}
}
