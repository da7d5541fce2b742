package clustertest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// verifyNamespaces returns those that `barque verify` makes.
func (c *Cluster) verifyNamespaces(ctx context.Context) (names []string, err error) {
	list, err := c.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, n := range list.Items {
		if strings.HasPrefix(n.Name, "barque-verify-") {
			names = append(names, n.Name)
		}
	}
	return names, nil
}

// `barque verify` finds nothing wrong with a cluster that is well, and leaves nothing, also when it
// is interrupted.
func TestVerify(t *testing.T) {
	c := sharedCluster(t)
	var report struct {
		Servers      []string
		Acknowledged int `json:"acknowledgedWrites"`
		Checks       []struct {
			Name     string
			Problems []string
		}
	}
	out := must(t, c.BarqueResult(t.Context(), "verify", "--duration=5s", "-o", "json"))
	if err := json.Unmarshal([]byte(out), &report); err != nil || len(report.Servers) != 3 || len(report.Checks) != 6 ||
		report.Acknowledged == 0 {
		t.Errorf("%v: %s", err, out)
	}
	if r := c.BarqueResult(t.Context(), "verify", "--duration=-1s"); r.Code != 2 || !contains(r.Err, "--duration") {
		t.Errorf("a wrong duration: code %d, %s", r.Code, r.Err)
	}
	path, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, "verify", "--duration=10m", "--pods=false")
	cmd.Env = append(os.Environ(), c.env()...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	Eventually(t, deadline, "it works in a namespace", func(ctx context.Context) error {
		names, err := c.verifyNamespaces(ctx)
		if err == nil && len(names) == 0 {
			err = fmt.Errorf("there is none")
		}
		return err
	})
	began := time.Now()
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("interrupted it ended with %v", err)
	}
	t.Logf("interrupted, it had cleaned up after %v", time.Since(began).Round(time.Millisecond))
	if names, err := c.verifyNamespaces(t.Context()); err != nil || len(names) > 0 {
		t.Errorf("left behind: %v, %v", names, err)
	}
	// A server that is gone is reported, and the others are verified all the same.
	recoverCluster(t, c, "s3")
	c.Dev(t, "kill", "s3")
	if r := c.BarqueResult(t.Context(), "verify", "--duration=2s", "--pods=false"); r.Code != 1 ||
		!contains(r.Out, "NOT KEPT", "s3 at", "linearizable") {
		t.Errorf("without s3: code %d, %s%s", r.Code, r.Out, r.Err)
	}
}
