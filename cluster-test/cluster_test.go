package clustertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/barque/barque/internal/syncbuf"
)

// The cluster as its operators see it: status, tokens, data directories, `barque dev` itself.

func contains(text string, parts ...string) bool {
	for _, p := range parts {
		if !strings.Contains(text, p) {
			return false
		}
	}
	return true
}

// revision is that of the store now.
func (c *Cluster) revision(t testing.TB) (revision uint64) {
	t.Helper()
	Eventually(t, deadline, "the revision", func(ctx context.Context) error {
		s, err := c.Status(ctx)
		if err != nil {
			return err
		}
		if revision = s.Revision; revision == 0 {
			return errors.New("it is not told")
		}
		return nil
	})
	return revision
}

// nodeState asks `dev status` for a node: running, paused or dead.
func (c *Cluster) nodeState(ctx context.Context, node string) string {
	var status struct {
		Nodes []struct{ Name, State string }
	}
	if json.Unmarshal([]byte(c.DevResult(ctx, "status", "-o", "json").Out), &status) != nil {
		return ""
	}
	for _, n := range status.Nodes {
		if n.Name == node {
			return n.State
		}
	}
	return ""
}

func TestStatus(t *testing.T) {
	c := sharedCluster(t)
	// Faults of an earlier test may be reported for a moment, and an election may come between the
	// answers of the servers.
	Eventually(t, deadline, "a status without warnings that tells all of three servers",
		func(ctx context.Context) error {
			s, err := c.Status(ctx)
			if err != nil {
				return err
			}
			return errors.Join(s.wellBut(ofTheMachine), s.tellsAll(3))
		})
	var members []Member
	if err := json.Unmarshal([]byte(c.Barque(t, "cluster", "members", "-o", "json")), &members); err != nil ||
		len(members) != 3 {
		t.Errorf("members: %d, %v", len(members), err)
	}
	for _, command := range []string{"status", "members"} {
		Eventually(t, deadline, "a table of the members", func(ctx context.Context) error {
			r := c.BarqueResult(ctx, "cluster", command)
			if r.Error != nil && r.Code != codeDegraded ||
				!contains(r.Out, "NAME", "ROLE", "GOSSIP", "REVISION", "LAST CONTACT", "DISK", "s1", "s2", "s3",
					"leader", "follower") {
				return fmt.Errorf("cluster %s: code %d\n%s%s", command, r.Code, r.Out, r.Err)
			}
			return nil
		})
	}
}

// tellsAll is nil when the status is complete for so many servers.
func (s *Status) tellsAll(servers int) error {
	if s.ID == "" || s.Term == 0 || s.Revision == 0 || len(s.Members) != servers || s.LeaderSince.IsZero() {
		return fmt.Errorf("status is %+v", s)
	}
	leaders := 0
	for _, m := range s.Members {
		if m.Role != "server" || m.Gossip != "alive" || m.Address == "" || m.Version == "" || m.Store == nil {
			return fmt.Errorf("member %+v", m)
		}
		if m.Store.State == "leader" {
			leaders++
			if m.Name != s.Leader {
				return fmt.Errorf("%s leads, the status says %s", m.Name, s.Leader)
			}
		}
		if m.Store.Term != s.Term || m.Store.Applied == 0 || m.Store.DiskP50 <= 0 || m.Store.DiskP99 <= 0 ||
			(m.Store.LastContact == nil) != (m.Name == s.Leader) {
			return fmt.Errorf("store of %s: %+v", m.Name, m.Store)
		}
		if len(m.Ways) != servers-1 || m.Ways[0].RTT == nil || *m.Ways[0].RTT <= 0 || len(m.Certificates) == 0 ||
			m.Certificates[0].NotAfter.Before(time.Now()) {
			return fmt.Errorf("%s: ways %+v, certificates %+v", m.Name, m.Ways, m.Certificates)
		}
	}
	if leaders != 1 {
		return fmt.Errorf("%d leaders", leaders)
	}
	return nil
}

// `dev up` of a cluster that runs says so and changes nothing.
func TestUpAgain(t *testing.T) {
	c := sharedCluster(t)
	if !contains(c.UpOutput, "leader", "s1", "s2", "s3", "kubeconfig", "kubectl get nodes") {
		t.Errorf("dev up printed\n%s", c.UpOutput)
	}
	before := c.Dev(t, "status", "-o", "json")
	if out := c.Dev(t, "up", "--name", c.ID); !contains(out, "runs already", "nothing was changed", "kubeconfig") {
		t.Errorf("dev up again says\n%s", out)
	}
	if after := c.Dev(t, "status", "-o", "json"); after != before {
		t.Errorf("it changed\n%s\nto\n%s", before, after)
	}
}

// join tries to join the cluster as an agent with an address that this node does not have, so it
// may be admitted, but gets no further.
func (c *Cluster) join(t *testing.T, token, name string) Result {
	t.Helper()
	path, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	server := c.address(t, "s1")
	mine := server[:strings.LastIndexByte(server, '.')] + ".250"
	return c.OnResult(t.Context(), "s1", "timeout", "120", path, "agent", "--server", "https://"+server+":6443",
		"--token", token,
		"--name", name, "--node-ip", mine, "--data-dir", t.TempDir(), "--kubelet-root-dir", t.TempDir())
}

// address returns a node's own address.
func (c *Cluster) address(t testing.TB, node string) string {
	t.Helper()
	address := ""
	Eventually(t, deadline, "the address of "+node, func(ctx context.Context) error {
		status, err := c.Status(ctx)
		if err != nil {
			return err
		}
		for _, m := range status.Members {
			if m.Name == node && m.Address != "" {
				address = m.Address
				return nil
			}
		}
		return fmt.Errorf("%s is no member", node)
	})
	return address
}

func TestTokens(t *testing.T) {
	c := sharedCluster(t)
	create := func(args ...string) string {
		return strings.TrimSpace(c.Barque(t, append([]string{"token", "create"}, args...)...))
	}
	good := create("--uses=1")
	wrong := good[:len(good)-4] + strings.Map(func(r rune) rune {
		if r == 'a' || r == 'A' {
			return 'b'
		}
		return 'a'
	}, good[len(good)-4:])
	expired := create("--ttl=1m")
	for _, c2 := range []struct {
		what, token, want string
		code              int
	}{
		{"no token at all", "", "token create", 2},
		{"nonsense", "nonsense", "token", 1},
		{"a wrong secret", wrong, "token", 1},
	} {
		if r := c.join(t, c2.token, "joiner"); r.Error == nil || !strings.Contains(r.Err, c2.want) ||
			r.Code != c2.code {
			t.Errorf("%s: code %d, %s", c2.what, r.Code, r.Err)
		}
	}
	Eventually(t, deadline, "the token expires", func(context.Context) error {
		if r := c.join(t, expired, "joiner"); !strings.Contains(r.Err, "expired") {
			return fmt.Errorf("joining says %s", r.Err)
		}
		return nil
	})
	// This one is admitted; then it finds that it does not have its address.
	if r := c.join(t, good, "joiner"); r.Error == nil ||
		!contains(r.Err, "admitted to the cluster", "cannot assign requested address") {
		t.Errorf("an agent with an address of another machine: %s", r.Err)
	}
	if r := c.join(t, good, "other"); r.Error == nil || !strings.Contains(r.Err, "used up") {
		t.Errorf("a token for one use was used again: %s", r.Err)
	}
	if r := c.join(t, create("--role=server"), "other"); r.Error == nil || !contains(r.Err, "role") {
		t.Errorf("an agent joined with a server's token: %s", r.Err)
	}
	list := c.Barque(t, "token", "ls")
	if strings.Contains(list, good) {
		t.Errorf("token ls shows secrets:\n%s", list)
	}
}

// server starts a server that is expected to refuse.
func (c *Cluster) server(t *testing.T, args ...string) Result {
	t.Helper()
	path, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	return c.OnResult(t.Context(), "s1",
		append(
			[]string{"timeout", "120", path, "server", "--kubelet-root-dir",
				filepath.Join("/tmp", "bq-"+c.ID+"-kubelet")}, args...)...)
}

func TestPortTaken(t *testing.T) {
	c := sharedCluster(t)
	r := c.server(t, "--name", "second", "--node-ip", c.address(t, "s1"), "--data-dir",
		filepath.Join("/tmp", "bq-"+c.ID+"-second"))
	defer os.RemoveAll(filepath.Join("/tmp", "bq-"+c.ID+"-second"))
	if r.Error == nil || !contains(r.Err, "6444", "in use", "--peer-port") {
		t.Errorf("code %d: %s", r.Code, r.Err)
	}
	first := c.DevResult(t.Context(), "status")
	if first.Error != nil || strings.Contains(first.Out, "dead") {
		t.Errorf("the server that was there: %s", first.Out)
	}
}

// A cluster of one server and one agent; then its data directories in the wrong hands.
func TestAgentAndDataDirectories(t *testing.T) {
	t.Parallel()
	images, err := testRegistry()
	if err != nil {
		t.Fatal(err)
	}
	other := sharedCluster(t)
	foreign := strings.TrimSpace(other.Barque(t, "token", "create", "--role=server"))
	c := Start(t, Options{Servers: 1, Agents: 1, Registry: images})
	s := NewSpace(t, c)
	Eventually(t, deadline, "nodes without taints", c.Healthy) // else all pods would go to one
	s.Apply(hello("spread", 2, "none"))
	s.K("rollout", "status", "deployment/spread", "--timeout=2m")
	nodes := map[string]bool{}
	for _, p := range s.Pods("app=spread") {
		nodes[p.Spec.NodeName] = true
	}
	if !nodes["s1"] || !nodes["a1"] {
		t.Errorf("the pods are on %v, want s1 and a1", nodes)
	}
	if out := c.Barque(t, "cluster", "members"); !contains(out, "agent", "a1") {
		t.Errorf("members:\n%s", out)
	}
	// With an agent it is the same: its own state goes by gossip.
	if err := c.idles(t.Context(), 3*time.Minute, 15*time.Second, nil); err != nil {
		t.Error(err)
	}
	address := c.address(t, "s1")
	c.Dev(t, "stop", "s1")
	dir := c.DataDir("s1")
	if r := c.server(t, "--name", "else", "--node-ip", address, "--data-dir", dir); r.Error == nil ||
		!contains(r.Err, dir, `"s1"`, "--name") {
		t.Errorf("a server of another name: %s", r.Err)
	}
	if r := c.server(t, "--name", "s1", "--node-ip", address, "--data-dir", dir, "--join", "https://"+address+":6443",
		"--token", foreign); r.Error == nil || !contains(r.Err, dir, "another cluster") {
		t.Errorf("a server with another cluster's token: %s", r.Err)
	}
	record := filepath.Join(dir, "node.json")
	data, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	newer := strings.Replace(string(data), `"format": 6,`, `"format": 99,`, 1)
	if newer == string(data) {
		t.Fatalf("%s has no format 6", record)
	}
	if err := os.WriteFile(record, []byte(newer), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := c.server(t, "--name", "s1", "--node-ip", address, "--data-dir", dir); r.Error == nil ||
		!contains(r.Err, dir, "newer") {
		t.Errorf("a data directory of a newer version: %s", r.Err)
	}
	if err := os.WriteFile(record, data, 0o600); err != nil {
		t.Fatal(err)
	}
	// After all these refusals nothing is lost.
	c.Dev(t, "start", "s1")
	Eventually(t, deadline, "a whole cluster", c.Healthy)
	Eventually(t, deadline, "two available replicas", func(context.Context) error {
		if out := s.K("get", "deployment", "spread", "-o", "jsonpath={.status.availableReplicas}"); out != "2" {
			return fmt.Errorf("%q are", out)
		}
		return nil
	})
}

func TestNotRoot(t *testing.T) {
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Fatal("setpriv (util-linux) is needed to run barque as an ordinary user")
	}
	path, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	// The user may not be able to enter the directory that the binary is in.
	dir, err := os.MkdirTemp("/tmp", "bq-nobody-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	barque := filepath.Join(dir, "barque")
	if err := os.WriteFile(barque, data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"server", "--data-dir", "/tmp/bq-none"},
		{"agent", "--server", "https://127.0.0.1:1", "--data-dir", "/tmp/bq-none"},
		{"dev", "up", "--dir", "/tmp/bq-none"}, {"dev", "down", "--dir", "/tmp/bq-none"}} {
		r := Run(t.Context(), "", nil,
			append([]string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", barque}, args...)...)
		if r.Code != 1 || !contains(r.Err, "root", "sudo") {
			t.Errorf("barque %s as nobody: code %d, %s", strings.Join(args, " "), r.Code, r.Err)
		}
	}
	if _, err := os.Stat("/tmp/bq-none"); err == nil {
		t.Error("it made a directory all the same")
		os.RemoveAll("/tmp/bq-none")
	}
}

// `dev down` in the middle of `dev up`, at several moments, and a second time: nothing is left.
func TestDownInTheMiddleOfUp(t *testing.T) {
	path, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	for _, after := range []string{"network ", "s1 serves", "s2 has joined"} {
		t.Run(strings.TrimSpace(after), func(t *testing.T) {
			c, err := Reserve()
			if err != nil {
				t.Fatal(err)
			}
			up := exec.CommandContext(t.Context(), path, "dev", "--dir", c.Dir, "up", "--name", c.ID)
			out := new(syncbuf.Buffer)
			up.Stdout, up.Stderr = out, out
			if err := up.Start(); err != nil {
				t.Fatal(err)
			}
			err = Poll(t.Context(), time.Minute, func(context.Context) error {
				if !strings.Contains(out.String(), after) {
					return fmt.Errorf("it says %s", out.String())
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			_ = up.Process.Signal(syscall.SIGKILL)
			_ = up.Wait()
			for range 2 {
				if err := c.Down(); err != nil {
					t.Errorf("after a start that was killed: %v\n%s", err, out.String())
				}
			}
		})
	}
}

// `barque check` finds all that a node needs on a machine that runs nodes, and lists it.
func TestCheck(t *testing.T) {
	c := sharedCluster(t)
	var findings []struct {
		Name string `json:"name"`
		OK   bool   `json:"ok"`
	}
	if err := json.Unmarshal([]byte(c.Barque(t, "check", "-o", "json")), &findings); err != nil {
		t.Fatal(err)
	}
	if len(findings) < 5 {
		t.Errorf("only %d things were looked at", len(findings))
	}
	for _, f := range findings {
		if !f.OK || f.Name == "" {
			t.Errorf("%+v", f)
		}
	}
	if out := c.Barque(t, "check"); strings.Contains(out, "MISSING") || !strings.Contains(out, "ok") {
		t.Errorf("it prints\n%s", out)
	}
}
