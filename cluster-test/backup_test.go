package clustertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// saveBackup makes a key and a backup sealed with it, and returns both files.
func (c *Cluster) saveBackup(t testing.TB) (file, key string) {
	t.Helper()
	dir := t.TempDir()
	file, key = filepath.Join(dir, "cluster.backup"), filepath.Join(dir, "backup.key")
	if err := os.WriteFile(key, []byte(c.Barque(t, "snapshot", "key")), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := c.Barque(t, "snapshot", "save", file, "--key-file", key); !contains(out, "saved and verified", file,
		"revision") {
		t.Errorf("snapshot save prints\n%s", out)
	}
	return file, key
}

// A backup is made, things change, and the running cluster goes back to it: objects and pods come
// back, new objects go, and earlier watches end with the demand to list again.
func TestBackupIntoRunningCluster(t *testing.T) {
	s := newSpace(t)
	c := s.Cluster
	s.Apply(hello("saved", 2, "none"))
	s.K("rollout", "status", "deployment/saved", "--timeout=2m")
	s.K("create", "configmap", "kept", "--from-literal=a=before")
	s.K("create", "configmap", "deleted", "--from-literal=a=before")
	file, key := c.saveBackup(t)

	s.K("delete", "deployment", "saved")
	s.K("delete", "configmap", "deleted")
	s.K("create", "configmap", "later", "--from-literal=a=b")
	before := c.revision(t)
	configs := c.Client.CoreV1().ConfigMaps(s.Namespace)
	list, err := configs.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	old, err := configs.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Stop()

	if r := c.BarqueResult(t.Context(), "snapshot", "restore", file, "--key-file", key); r.Code != 4 ||
		!contains(r.Err, "is lost", "Go on? [y/N]", "nothing was changed") {
		t.Errorf("without a yes: code %d, %s%s", r.Code, r.Out, r.Err)
	}
	var restored struct {
		Revision uint64 `json:"revision"`
	}
	if err := json.Unmarshal([]byte(c.Barque(t, "snapshot", "restore", file, "--key-file", key, "--yes", "-o", "json")),
		&restored); err != nil || restored.Revision <= before {
		t.Errorf("restored at revision %d, it was %d before: %v", restored.Revision, before, err)
	}
	Eventually(t, deadline, "what was deleted is back and what was new is gone", func(ctx context.Context) error {
		if _, err := configs.Get(ctx, "deleted", metav1.GetOptions{}); err != nil {
			return err
		}
		if _, err := configs.Get(ctx, "later", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("later: %v", err)
		}
		return nil
	})
	Eventually(t, deadline, "the pods are back", func(ctx context.Context) error {
		ready := 0
		for _, p := range s.Pods("app=saved") {
			if p.DeletionTimestamp == nil && Ready(&p) {
				ready++
			}
		}
		if out := s.K("get", "deployment", "saved", "-o", "jsonpath={.status.readyReplicas}"); ready != 2 ||
			out != "2" {
			return fmt.Errorf("%d pods are ready, the deployment says %q", ready, out)
		}
		return nil
	})
	expectExpired(t, old)
	again, err := configs.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err == nil {
		expectExpired(t, again)
	} else if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("a watch from before: %v", err)
	}
	Eventually(t, deadline, "the cluster is healthy", c.Healthy)
}

// expectExpired checks that a watch ends, and that it ends with 410 if it says why.
func expectExpired(t *testing.T, w watch.Interface) {
	t.Helper()
	defer w.Stop()
	end := time.After(deadline)
	for {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				return
			}
			if e.Type != watch.Error {
				t.Errorf("a watch from before shows %s %v", e.Type, e.Object)
				continue
			}
			if err := apierrors.FromObject(e.Object); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
				t.Errorf("a watch from before ends with %v", err)
			}
			return
		case <-end:
			t.Error("a watch from before goes on")
			return
		}
	}
}

func TestInspectBackup(t *testing.T) {
	c := sharedCluster(t)
	file, key := c.saveBackup(t)
	if out := c.Barque(t, "snapshot", "inspect", file, "--key-file", key); !contains(out, "/registry/namespaces",
		"everything", "ca.key") {
		t.Errorf("inspect prints\n%s", out)
	}
	if out := c.Barque(t, "snapshot", "inspect", file); !contains(out, "the checksums; the content is sealed") {
		t.Errorf("inspect without the key prints\n%s", out)
	}
	if r := c.BarqueResult(t.Context(), "snapshot", "save", file, "--key-file", key); r.Code != 2 ||
		!strings.Contains(r.Err, "exists already") {
		t.Errorf("a file that exists: code %d, %s", r.Code, r.Err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"inspect", file}, {"inspect", file, "--key-file", key},
		{"restore", file, "--key-file", key, "--yes"}} {
		if r := c.BarqueResult(t.Context(), append([]string{"snapshot"}, args...)...); r.Code != 1 ||
			!contains(r.Err, "is damaged: block", "at byte") {
			t.Errorf("%v of a damaged file: code %d, %s", args, r.Code, r.Err)
		}
	}
	if out := c.Barque(t, "snapshot", "ls"); !contains(out, "server s1, ", "server s2, ", "server s3, ", "every 12h") {
		t.Errorf("ls prints\n%s", out)
	}
}

// beginFrom begins a new cluster of one server with a backup, on the machine of s1, and returns the
// URL of its API. stop ends it, as the end of the test does.
func (c *Cluster) beginFrom(t *testing.T, file, key string) (server string, stop func() Result) {
	t.Helper()
	path, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	address, dir := c.address(t, "s1"), t.TempDir()
	ended := make(chan Result, 1)
	go func() { // ends with the server: it is stopped below, and in any case before the command that runs it
		ended <- c.OnResult(context.Background(), "s1", "timeout", "150", path, "server", "--no-node", "--name",
			"restored", "--node-ip", address,
			"--api-port", "7443", "--peer-port", "7444", "--gossip-port", "7947", "--data-dir", dir, "--restore-from",
			file, "--restore-key-file", key)
	}()
	stop = sync.OnceValue(func() Result {
		found, err := pids(func(args []string) bool {
			return len(args) > 1 && args[1] == "server" && argument(args, "--data-dir") == dir
		})
		for _, pid := range found {
			err = errors.Join(err, syscall.Kill(pid, syscall.SIGTERM))
		}
		if err != nil {
			t.Errorf("stop the new cluster: %v", err)
		}
		return <-ended
	})
	t.Cleanup(func() { stop() })
	return "https://" + address + ":7443", stop
}

// A new cluster begins with the backup, beside the old one: the old kubeconfig is good for it, too.
func TestBackupFromNothing(t *testing.T) {
	s := newSpace(t)
	c := s.Cluster
	s.K("create", "configmap", "kept", "--from-literal=a=before")
	before := c.revision(t)
	file, key := c.saveBackup(t)
	server, stop := c.beginFrom(t, file, key)
	Eventually(t, deadline, "the new cluster shows what was saved", func(ctx context.Context) error {
		r := c.KubectlResult(ctx, "", "--server", server, "-n", s.Namespace, "get", "configmap", "kept", "-o",
			"jsonpath={.data.a}")
		if r.Out != "before" {
			return fmt.Errorf("%s%s", r.Out, r.Err)
		}
		return nil
	})
	var list metav1.PartialObjectMetadataList
	out := must(t, c.KubectlResult(t.Context(), "", "--server", server, "get", "--raw", "/api/v1/configmaps?limit=1"))
	var revision uint64
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Error(err)
	} else if _, err := fmt.Sscan(list.ResourceVersion, &revision); err != nil || revision < before+1_000_000_000 {
		t.Errorf("its revision is %q, the old cluster's is %d", list.ResourceVersion, before)
	}
	if status, err := c.Status(t.Context()); err != nil || len(status.Members) != 3 {
		t.Errorf("the old cluster: %+v, %v", status, err)
	}
	if r := stop(); !strings.Contains(r.Err, "the new cluster has the state of the backup") {
		t.Errorf("the new server says: code %d, %s", r.Code, r.Err)
	}
}

// A server that finds the mark of a quarantine in its directory serves nothing, gets a right state
// from the leader, and starts again in the same process, without an operator.
func TestQuarantinedServerHeals(t *testing.T) {
	c := sharedCluster(t)
	status, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	victim := ""
	for _, m := range status.Members {
		if m.Name != status.Leader {
			victim = m.Name
		}
	}
	c.Dev(t, "kill", victim)
	mark := filepath.Join(c.DataDir(victim), "store", "quarantine.json")
	if err := os.WriteFile(mark, []byte(`{"since": "2026-01-01T00:00:00Z", "reason": "a test has marked it"}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	c.Dev(t, "start", victim)
	Eventually(t, 60*time.Second, "the server is well again", func(ctx context.Context) error {
		if _, err := os.Stat(mark); !os.IsNotExist(err) {
			return fmt.Errorf("the mark is still there: %v", err)
		}
		log, err := os.ReadFile(c.LogFile(victim))
		if err != nil ||
			!contains(string(log), "is in quarantine and serves nothing\" reason=\"a test has marked it",
				"has got a right state from the leader") {
			return fmt.Errorf("its log does not tell what happened: %v", err)
		}
		return c.Healthy(ctx)
	})
	if state := c.nodeState(t.Context(), victim); state != "running" {
		t.Errorf("its process is %q for who watches over it", state)
	}
}
