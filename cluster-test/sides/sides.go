// Package sides runs three servers of Barque, or three of upstream, each with a member of etcd, for
// benchmarks that compare the two: `make bench-api`, `make bench-scheduler`.
package sides

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/kubeapiserver"
	"github.com/barque/barque/internal/procstat"
)

const servers = 3

// Side is the servers of one kind.
type Side struct {
	Name    string
	Servers []Endpoint
	// RestartLast kills the last server and starts it again. It returns how long it took until
	// ready.
	RestartLast func(ctx context.Context) (time.Duration, error)
	// KillLeader kills the server whose controllers and scheduler act, as kill -9 does, all of its
	// processes.
	KillLeader func(ctx context.Context) (Killed, error)
	Stop       func() error
}

// Killed is the consequence of a server's death.
type Killed struct {
	At     time.Time
	Others []Endpoint
	Start  func() error // the killed one, again
}

// Endpoint is a server.
type Endpoint struct {
	URL       string
	TLS       *tls.Config
	Authority []byte // the roots of TLS, as PEM
	Processes func() []int
}

// Client returns a client with a connection of its own.
func (e Endpoint) Client() *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: e.TLS.Clone(), ForceAttemptHTTP2: true, DisableCompression: true,
	}}
}

// Upstream starts kube-apiservers over etcd, and with controllers also kube-controller-managers and
// kube-schedulers. The options say so, where the programs are (see kubeapiserver.Build) and where
// the data goes. Each server has a network namespace on a bridge, as each of a dev cluster has, so
// that packets take the same way on both sides.
func Upstream(ctx context.Context, o kubeapiserver.Options) (*Side, error) {
	o.Members = servers
	b, err := newBridge(servers)
	if err != nil {
		return nil, err
	}
	o.Hosts = b.hosts()
	c, err := kubeapiserver.Start(ctx, o)
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	s := &Side{Name: "upstream", Stop: func() error { c.Stop(); return b.close() }}
	for _, server := range c.Servers {
		s.Servers = append(s.Servers, Endpoint{
			URL: server.URL, TLS: &tls.Config{RootCAs: server.Roots, Certificates: []tls.Certificate{c.Client}},
			Authority: server.Authority, Processes: server.Processes,
		})
	}
	s.RestartLast = func(context.Context) (time.Duration, error) { return c.Servers[servers-1].Restart() }
	s.KillLeader = func(context.Context) (Killed, error) {
		k := Killed{At: time.Now(), Others: s.Servers[1:], Start: c.Restore}
		c.KillLeader()
		return k, nil
	}
	return s, nil
}

func without(all []Endpoint, i int) []Endpoint { return slices.Delete(slices.Clone(all), i, i+1) }

// Barque starts a dev cluster, with arguments for its servers.
func Barque(ctx context.Context, args ...string) (_ *Side, err error) {
	c, err := clustertest.Up(ctx, clustertest.Options{Servers: servers, ServerArgs: args})
	if err != nil {
		if c != nil {
			err = errors.Join(err, c.Down())
		}
		return nil, err
	}
	s := &Side{Name: "Barque", Stop: c.Down}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Down())
		}
	}()
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(config.CertData, config.KeyData)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(config.CAData)
	nodes, err := devNodes(ctx, c)
	if err != nil {
		return nil, err
	}
	for i, n := range nodes {
		s.Servers = append(s.Servers, Endpoint{
			URL:       "https://" + n.Address + ":6443",
			TLS:       &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{certificate}},
			Authority: config.CAData, Processes: func() []int { return []int{nodes[i].PID} },
		})
	}
	s.KillLeader = func(ctx context.Context) (Killed, error) {
		status, err := c.Status(ctx)
		if err != nil {
			return Killed{}, err
		}
		leader := slices.IndexFunc(nodes, func(n devNode) bool { return n.Name == status.Leader })
		if leader < 0 {
			return Killed{}, fmt.Errorf("no server has the name of the leader, %q", status.Leader)
		}
		k := Killed{At: time.Now(), Others: without(s.Servers, leader)}
		k.Start = func() (err error) {
			if err := c.StartNode(ctx, nodes[leader].Name); err != nil {
				return err
			}
			nodes, err = devNodes(ctx, c)
			return err
		}
		return k, c.KillNodes(ctx, nodes[leader].Name)
	}
	last := s.Servers[servers-1]
	s.RestartLast = func(ctx context.Context) (time.Duration, error) {
		if err := c.KillNodes(ctx, nodes[servers-1].Name); err != nil {
			return 0, err
		}
		started := make(chan error, 1)
		// It ends with the command, which the context ends.
		go func() { started <- c.StartNode(ctx, nodes[servers-1].Name) }()
		client := last.Client()
		err := kubeapiserver.Retry(ctx, nil, func() error { return kubeapiserver.Ready(ctx, client, last.URL) })
		ready := uptime()
		if err := errors.Join(err, <-started); err != nil {
			return 0, err
		}
		if nodes, err = devNodes(ctx, c); err != nil {
			return 0, err
		}
		stat, err := procstat.Read(nodes[servers-1].PID)
		return ready - time.Duration(stat.Started)*time.Second/ticks, err
	}
	return s, nil
}

// UpstreamOnBarque starts a dev cluster, and one kube-controller-manager and one kube-scheduler
// that act on its first server. They count as processes of that. The scheduler takes the pods that
// name it; Barque's own takes none of those. Each controller is named in both arguments, so that
// either Barque's works or upstream's.
func UpstreamOnBarque(ctx context.Context, o kubeapiserver.Options, scheduler string, args ...string) (*Side, error) {
	s, err := Barque(ctx, args...)
	if err != nil {
		return nil, err
	}
	first := &s.Servers[0]
	c, err := kubeapiserver.Act(ctx, kubeapiserver.ActOptions{
		Bin: o.Bin, Work: o.Work, URL: first.URL, Authority: first.Authority, Client: first.Client(),
		Certificate: first.TLS.Certificates[0],
		Scheduler:   scheduler, ControllerArgs: o.ControllerArgs,
	})
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	own, stop := first.Processes, s.Stop
	first.Processes = func() []int { return append(own(), c.Servers[0].Processes()...) }
	s.Stop = func() error { c.Stop(); return stop() }
	return s, nil
}

type devNode struct {
	Name, Address string
	PID           int
}

// devNodes returns the servers of a dev cluster.
func devNodes(ctx context.Context, c *clustertest.Cluster) ([]devNode, error) {
	r := c.DevResult(ctx, "status", "-o", "json")
	if r.Error != nil {
		return nil, r.Error
	}
	var status struct{ Nodes []devNode }
	if err := json.Unmarshal([]byte(r.Out), &status); err != nil {
		return nil, err
	}
	if len(status.Nodes) != servers {
		return nil, fmt.Errorf("%d servers run, not %d", len(status.Nodes), servers)
	}
	return status.Nodes, nil
}

// ticks is how many of the clock ticks of /proc make a second, on every Linux that Go runs on.
const ticks = 100

// uptime is the time since boot.
func uptime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // fails for clocks that do not exist
	return time.Duration(t.Nano())
}

// Usage is the use of processes so far, and their memory.
type Usage struct {
	CPU       time.Duration
	Children  time.Duration // CPU time of the children that have ended; not in CPU
	Anonymous float64       // MiB of memory that is not of files
	Writes    int64         // system calls that write, to files and to the network
}

// Use adds up all processes of a side.
func (s *Side) Use() (total Usage, err error) {
	for _, e := range s.Servers {
		u, err := e.Use()
		if err != nil {
			return total, err
		}
		total.CPU += u.CPU
		total.Anonymous += u.Anonymous
		total.Writes += u.Writes
	}
	return total, nil
}

// Use adds up the processes of a server.
func (e Endpoint) Use() (total Usage, err error) {
	for _, pid := range e.Processes() {
		u, err := Process(pid)
		if err != nil {
			return total, err
		}
		total.CPU += u.CPU
		total.Anonymous += u.Anonymous
		total.Writes += u.Writes
	}
	return total, nil
}

// Programs returns the CPU time of the processes of a server, by the names of their programs, as
// the kernel has them: of at most 15 bytes.
func (e Endpoint) Programs() (map[string]time.Duration, error) {
	out := map[string]time.Duration{}
	for _, pid := range e.Processes() {
		u, err := Process(pid)
		if err != nil {
			return nil, err
		}
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil {
			return nil, err
		}
		out[strings.TrimSpace(string(name))] += u.CPU
	}
	return out, nil
}

// Process is the usage of one process.
func Process(pid int) (Usage, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Usage{}, err
	}
	u, err := parseCPU(stat)
	if err != nil {
		return u, fmt.Errorf("process %d: %w", pid, err)
	}
	if u.Writes, err = writes(pid); err != nil {
		return u, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, err
	}
	for line := range bytes.Lines(status) {
		if value, ok := bytes.CutPrefix(line, []byte("RssAnon:")); ok {
			kib, err := strconv.ParseFloat(strings.Fields(string(value))[0], 64)
			u.Anonymous = kib / 1024
			return u, err
		}
	}
	return u, fmt.Errorf("process %d has no RssAnon", pid)
}

// writes reads how often a process has called write, from /proc/PID/io (proc_pid_io(5)).
func writes(pid int) (int64, error) {
	io, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(io) {
		if value, ok := bytes.CutPrefix(line, []byte("syscw:")); ok {
			return strconv.ParseInt(strings.TrimSpace(string(value)), 10, 64)
		}
	}
	return 0, fmt.Errorf("process %d has no syscw", pid)
}

// parseCPU reads the times in user and kernel mode, and those of children, from /proc/PID/stat
// (proc_pid_stat(5)).
func parseCPU(stat []byte) (Usage, error) {
	// The name of the program, in parentheses, may have anything in it.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 15 {
		return Usage{}, errors.New("its stat is short")
	}
	var times [4]time.Duration
	for i, text := range fields[11:15] {
		n, err := strconv.ParseUint(text, 10, 63)
		if err != nil {
			return Usage{}, err
		}
		times[i] = time.Duration(n) * time.Second / ticks
	}
	return Usage{CPU: times[0] + times[1], Children: times[2] + times[3]}, nil
}

// LoadAverage is the machine's, of the last minute, five and fifteen.
func LoadAverage() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(data))[:3], " ")
}
