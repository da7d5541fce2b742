package clustertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/membership/datakeys"
)

// encryption is the state of the data keys.
func (c *Cluster) encryption(ctx context.Context) (s datakeys.Status, err error) {
	data, err := c.Client.Discovery().RESTClient().Get().AbsPath(adminapi.EncryptionPath).DoRaw(ctx)
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(data, &s)
}

// manySecrets is as many as take the leader a while to rewrite.
const manySecrets = 1000

// TestEncryptionUnderWay has the cases of others, on a cluster of three servers. Encryption is
// switched on and its key is exchanged while the cluster has Secrets (k3s-io/k3s#13598: the servers
// never agreed). Then all servers are killed while the leader rewrites a thousand Secrets under a
// new key (k3s-io/k3s#13763: no server started any more, as the new key was on one disk only). They
// come back by themselves, with every Secret, and the exchange goes on to its end without a
// command.
func TestEncryptionUnderWay(t *testing.T) {
	needs.AllTests(t)
	c := Start(t, Options{})
	s := NewSpace(t, c)
	Eventually(t, deadline, "a whole cluster", c.Healthy)
	c.Barque(t, "secrets-encrypt", "disable")
	value := func(i int) string { return fmt.Sprintf("the value of Secret %d", i) }
	secrets := c.Client.CoreV1().Secrets(s.Namespace)
	var making sync.WaitGroup
	for part := range 10 {
		making.Go(func() {
			for i := part; i < manySecrets; i += 10 {
				_, err := secrets.Create(t.Context(),
					&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s%d", i)},
						StringData: map[string]string{"v": value(i)}}, metav1.CreateOptions{})
				if exceptExists(err) != nil {
					t.Error(err)
				}
			}
		})
	}
	making.Wait()
	right := func(ctx context.Context) error {
		for _, server := range c.Nodes() {
			r := c.KubectlResult(ctx, "", "--server", "https://"+net.JoinHostPort(c.address(t, server), apiPort), "-n",
				s.Namespace, "get", "secrets", "-o", "json")
			if r.Error != nil {
				return r.Error
			}
			var list corev1.SecretList
			if err := json.Unmarshal([]byte(r.Out), &list); err != nil {
				return err
			}
			found := map[string]string{}
			for _, is := range list.Items {
				found[is.Name] = string(is.Data["v"])
			}
			for i := range manySecrets {
				if is := found[fmt.Sprintf("s%d", i)]; is != value(i) {
					return fmt.Errorf("Secret %d is %q by %s", i, is, server)
				}
			}
		}
		return nil
	}
	clear := func(server string) int {
		return len(stolen(t, filepath.Join(c.DataDir(server), "store")).holds([]byte(value(7))))
	}
	if err := right(t.Context()); err != nil {
		t.Fatal(err)
	}
	if clear("s1") == 0 {
		t.Fatal("without encryption the Secret is not in the store: the search finds nothing")
	}
	for _, change := range []string{"enable", "rotate"} {
		c.Barque(t, "secrets-encrypt", change)
		if is, err := c.encryption(t.Context()); err != nil || is.Step != datakeys.AtRest || !is.Enabled ||
			len(is.Keys) != 1 || is.Clear > 0 {
			t.Errorf("after %s: %+v, %v", change, is, err)
		}
		if err := right(t.Context()); err != nil {
			t.Errorf("after %s: %v", change, err)
		}
	}
	for _, server := range c.Nodes() {
		if n := clear(server); n > 0 {
			t.Errorf("a Secret is in clear in %d files of the store of %s", n, server)
		}
	}
	before, err := c.encryption(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var under []datakeys.KeyStatus
	Eventually(t, deadline, "the leader rewrites the Secrets", func(ctx context.Context) error {
		is, err := c.encryption(ctx)
		switch {
		case err != nil:
			return err
		case is.Step == datakeys.AtRest: // the first time, or when the change was faster than the look
			before = is
			return errors.Join(errors.New("it has not begun"),
				c.BarqueResult(ctx, "secrets-encrypt", "rotate", "--wait=0s").Error)
		case is.Step != datakeys.Rewrite:
			return fmt.Errorf("the step is %q", is.Step)
		}
		under = is.Keys
		return nil
	})
	t.Logf("all servers are killed with the keys %+v", under)
	var killing sync.WaitGroup
	for _, server := range c.Nodes() {
		killing.Go(func() { c.Dev(t, "kill", server) })
	}
	killing.Wait()
	for _, server := range c.Nodes() {
		c.Dev(t, "start", server)
	}
	Eventually(t, deadline, "a whole cluster", c.Healthy)
	Eventually(t, deadline, "all Secrets", right)
	Eventually(t, deadline, "the end of the exchange", func(ctx context.Context) error {
		is, err := c.encryption(ctx)
		if err == nil &&
			(is.Step != datakeys.AtRest || len(is.Keys) != 1 || is.Keys[0].ID == before.Keys[0].ID || is.Clear > 0 ||
				is.Problem != "") {
			err = fmt.Errorf("it is %+v", is)
		}
		return err
	})
	if err := right(t.Context()); err != nil {
		t.Error(err)
	}
}
