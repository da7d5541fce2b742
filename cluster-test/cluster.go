package clustertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/barque/barque/cluster-test/disk"
	"github.com/barque/barque/cluster-test/registry"
	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/osthread"
)

// Options of a cluster.
type Options struct {
	Servers  int // 3 when 0
	Agents   int
	Families string   // of addresses, as --ip-families has them; IPv4 when empty
	NodeArgs []string // for every node
	// ServerArgs are for servers, beside these.
	ServerArgs []string
	// Registry serves docker.io's images to the nodes; without one they reach none.
	Registry *registry.Registry
	// Binary is the barque that makes the cluster and starts its nodes; the one under test when
	// empty.
	Binary string
	// DiskMegabytes gives each node a disk of that size, on which its data directory is; 0: none.
	// See Disk.
	DiskMegabytes int
}

// Cluster is a dev cluster that runs.
type Cluster struct {
	ID       string // name of the dev cluster
	Dir      string // everything of the cluster; short enough for the paths of Unix sockets
	Registry *registry.Registry
	Client   kubernetes.Interface
	UpOutput string // output of `barque dev up`

	binary     string // starts the nodes; the one under test when empty
	nodes      []string
	disks      map[string]*disk.Disk
	forwarding string // see forwardingBefore
}

// clusters counts the clusters of this process, for their names.
var clusters atomic.Int32

// Start makes a cluster that is removed when the test ends.
func Start(t *testing.T, o Options) *Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c, err := Up(ctx, o)
	if c != nil {
		t.Cleanup(func() {
			if err := c.refusals(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
			if t.Failed() {
				c.Dump(t.Output())
			}
			if err := c.Down(); err != nil {
				t.Errorf("remove the cluster: %v", err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Reserve gives names to a cluster that the test itself makes with Dev("up").
func Reserve() (*Cluster, error) {
	if os.Geteuid() != 0 {
		return nil,
			errors.New(
				"the end-to-end tests run a real cluster, with network namespaces and containers: run them as root")
	}
	if _, err := Binary(); err != nil {
		return nil, err
	}
	name := fmt.Sprintf("t%d%s", os.Getpid(), letters(int(clusters.Add(1))-1))
	c := &Cluster{ID: name, Dir: filepath.Join("/tmp", "bq-"+name)}
	var err error
	if c.forwarding, err = c.forwardingBefore(); err != nil {
		return nil, err
	}
	return c, reaper.expect(c)
}

// Watcher returns a client without a time-out: that of Client ends its watches, too.
func (c *Cluster) Watcher() (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// letters counts a, b … z, aa, ab …
func letters(n int) string {
	last := string(rune('a' + n%26))
	if n < 26 {
		return last
	}
	return letters(n/26-1) + last
}

// Up makes a cluster. One that is returned together with an error is to be removed too.
func Up(ctx context.Context, o Options) (*Cluster, error) {
	c, err := Reserve()
	if err != nil {
		return nil, err
	}
	c.binary = o.Binary
	if o.Servers == 0 {
		o.Servers = 3
	}
	var nodes []string
	for i := range o.Servers {
		nodes = append(nodes, fmt.Sprintf("s%d", i+1))
	}
	for i := range o.Agents {
		nodes = append(nodes, fmt.Sprintf("a%d", i+1))
	}
	if o.DiskMegabytes > 0 {
		if err := c.makeDisks(nodes, o.DiskMegabytes); err != nil {
			return c, err
		}
	}
	// The mirrors are outside the cluster's own directory, which `dev down` must leave empty.
	if err := registry.WriteMirrors(c.mirrors()); err != nil {
		return c, err
	}
	args := []string{"up", "--name", c.ID, "--servers", fmt.Sprint(o.Servers), "--agents", fmt.Sprint(o.Agents),
		"--node-arg=--registries=" + c.mirrors()}
	if o.Families != "" {
		args = append(args, "--ip-families", o.Families)
	}
	for _, a := range o.NodeArgs {
		args = append(args, "--node-arg="+a)
	}
	for _, a := range o.ServerArgs {
		args = append(args, "--server-arg="+a)
	}
	r := c.DevResult(ctx, args...)
	c.UpOutput = r.Out
	if r.Error != nil {
		return c, r.Error
	}
	c.nodes = nodes
	if c.Registry = o.Registry; c.Registry != nil {
		for _, n := range c.nodes {
			if err := c.Registry.Serve(c.Netns(n)); err != nil {
				return c, err
			}
		}
	}
	return c, c.Connect()
}

// Upgrade makes the given barque the one that starts the nodes from now on. Nodes that run keep
// theirs until they are restarted.
func (c *Cluster) Upgrade(binary string) { c.binary = binary }

// Connect makes the client. It reads the kubeconfig as any program would.
func (c *Cluster) Connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return err
	}
	config.QPS = -1
	config.Timeout = 20 * time.Second
	c.Client, err = kubernetes.NewForConfig(config)
	return err
}

// Down removes the cluster and reports its leftovers.
func (c *Cluster) Down() error {
	var err error
	if c.Registry != nil {
		err = c.Registry.Leave(c.namespaces()...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	c.thawDisks()
	if r := c.DevResult(ctx, "down", "--name", c.ID); r.Error != nil {
		return errors.Join(err, r.Error)
	}
	err = errors.Join(err, os.RemoveAll(c.mirrors()), os.RemoveAll(c.images()), c.leftSettings(),
		awaitNothing(os.Stderr, "cluster "+c.ID, await.Hang, c.leftovers))
	if err == nil {
		reaper.done(c)
	}
	return err
}

// sayAfter is the wait before the first line of progress, and sayEach the time between two.
const sayAfter, sayEach = 3 * time.Second, 15 * time.Second

// awaitNothing waits until no leftovers of a removed thing are found, and prints them meanwhile.
// Killed processes take a moment to be reaped by their new parent, and network namespaces to be
// taken down by the kernel.
func awaitNothing(out io.Writer, of string, limit time.Duration, left func() error) error {
	began := time.Now()
	next := began.Add(sayAfter)
	return Poll(context.Background(), limit, func(context.Context) error {
		err := left()
		if now := time.Now(); err != nil && !now.Before(next) {
			next = now.Add(sayEach)
			fmt.Fprintf(out, "%s is removed; waiting since %v, for %v at most, for the end of:\n%v\n", of,
				now.Sub(began).Round(time.Second), limit, err)
		}
		return err
	})
}

// Nodes returns the nodes' names, servers first.
func (c *Cluster) Nodes() []string { return c.nodes }

// Kubeconfig is the file that `dev up` wrote.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.Dir, "kubeconfig") }

// Netns is the name of a node's network namespace.
func (c *Cluster) Netns(node string) string { return "barque-" + c.ID + "-" + node }

// MAC is that of a node's interface on the bridge.
func (c *Cluster) MAC(node string) (mac string, err error) {
	// The node's own /sys shows the interfaces of this machine.
	err = osthread.InNetwork(c.Netns(node), func() error {
		link, err := net.InterfaceByName("eth0")
		if err == nil {
			mac = link.HardwareAddr.String()
		}
		return err
	})
	return mac, err
}

// DataDir is a node's data directory, LogFile the log of its process.
func (c *Cluster) DataDir(node string) string { return filepath.Join(c.Dir, node) }

// LogFile is where a node's log goes.
func (c *Cluster) LogFile(node string) string { return filepath.Join(c.Dir, node+".log") }

func (c *Cluster) mirrors() string { return c.Dir + "-registries" }

func (c *Cluster) namespaces() []string {
	var out []string
	for _, n := range c.nodes {
		out = append(out, c.Netns(n))
	}
	return out
}

// Binary returns the barque under test.
func Binary() (string, error) {
	path := os.Getenv("BARQUE_BIN")
	if path == "" {
		path = filepath.Join("..", "bin", "barque")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("the barque to test is not there: %w; run `make build`, or set BARQUE_BIN", err)
	}
	return path, nil
}

// kubectlPath is the kubectl on the PATH if it is new enough, else none: then barque's own is used.
func kubectlPath(ctx context.Context) string {
	path, err := exec.LookPath("kubectl")
	if err != nil {
		return ""
	}
	out, err := exec.CommandContext(ctx, path, "version", "--client", "-o", "json").Output()
	if err != nil {
		return ""
	}
	var v struct {
		ClientVersion struct{ Major, Minor string }
	}
	var minor int
	if json.Unmarshal(out, &v) != nil || v.ClientVersion.Major != "1" {
		return ""
	}
	if _, err := fmt.Sscanf(strings.TrimRight(v.ClientVersion.Minor, "+"), "%d", &minor); err != nil || minor < 32 {
		return ""
	}
	return path
}
