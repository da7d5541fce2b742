package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/barque/barque/cluster-test/store/member"
)

// etcd is a cluster of etcd's members as a subject: its defaults, without TLS, a real disk.
type etcd struct {
	b       *bench
	dir     string
	members []*etcdMember
}

type etcdMember struct {
	args   []string
	log    string
	client string // URL
	cmd    *exec.Cmd
	gone   chan struct{} // closed when the process has ended
}

// withBoth starts a group and, if etcd is to be compared with, one of etcd's beside it. Only one of
// the two is under load at a time.
func (b *bench) withBoth(ctx context.Context, size int, use func(group, *etcd) error) error {
	return b.withGroup(ctx, size, member.Options{}, func(g group) error {
		e, err := b.startEtcd(ctx, size)
		if err != nil {
			return err
		}
		err = use(g, e)
		return errors.Join(err, e.close())
	})
}

// startEtcd returns nil when etcd is not to be measured.
func (b *bench) startEtcd(ctx context.Context, size int) (_ *etcd, err error) {
	if b.etcd == "" || b.etcdLoad == "" {
		return nil, nil
	}
	e := &etcd{b: b}
	if e.dir, err = os.MkdirTemp(b.dir, "storebench-etcd-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	ports, err := freePorts(2 * size)
	if err != nil {
		return nil, err
	}
	var cluster []string
	for i := range size {
		cluster = append(cluster, fmt.Sprintf("m%d=http://127.0.0.1:%d", i, ports[2*i+1]))
	}
	for i := range size {
		client, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[2*i]), fmt.Sprintf("http://127.0.0.1:%d", ports[2*i+1])
		name := fmt.Sprintf("m%d", i)
		m := &etcdMember{client: client, log: filepath.Join(e.dir, name+".log"), args: []string{
			"--name", name, "--data-dir", filepath.Join(e.dir, name), "--log-level", "error",
			"--listen-client-urls", client, "--advertise-client-urls", client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-state", "new",
		}}
		e.members = append(e.members, m)
		if err := m.start(b.etcd); err != nil {
			return nil, err
		}
	}
	_, err = e.leader(ctx)
	return e, err
}

func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

func (m *etcdMember) start(binary string) error {
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	m.cmd, m.gone = exec.Command(binary, m.args...), make(chan struct{})
	m.cmd.Stdout, m.cmd.Stderr = log, log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for this program, which stops them
	if err := m.cmd.Start(); err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	go func(cmd *exec.Cmd, gone chan struct{}) { // ends with the process
		cmd.Wait()
		close(gone)
	}(m.cmd, m.gone)
	return nil
}

func (m *etcdMember) kill() {
	m.cmd.Process.Kill()
	<-m.gone
}

func (e *etcd) close() error {
	if e == nil {
		return nil
	}
	for _, m := range e.members {
		if m.cmd != nil && m.cmd.Process != nil {
			m.kill()
		}
	}
	return os.RemoveAll(e.dir)
}

// report is the output of the load program.
type report struct {
	outcome
	LongestGap time.Duration
	Leader     string // URL
}

// tell runs the load program, and returns its report.
func (e *etcd) tell(ctx context.Context, kind string, endpoints []string, args ...string) (report, error) {
	args = append([]string{"-kind", kind, "-endpoints", strings.Join(endpoints, ",")}, args...)
	out, err := exec.CommandContext(ctx, e.b.etcdLoad, args...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return report{}, fmt.Errorf("etcd's load %q: %w", kind, err)
	}
	var r report
	return r, json.Unmarshal(out, &r)
}

// leader waits for a leader and returns its number.
func (e *etcd) leader(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := e.tell(ctx, "leader", e.endpoints(0))
	if err != nil {
		return 0, err
	}
	for i, m := range e.members {
		if m.client == r.Leader {
			return i, nil
		}
	}
	return 0, fmt.Errorf("etcd's leader is at %q, which is no member", r.Leader)
}

// endpoints returns all members' URLs, beginning with that of a member.
func (e *etcd) endpoints(first int) []string {
	var urls []string
	for i := range e.members {
		urls = append(urls, e.members[(first+i)%len(e.members)].client)
	}
	return urls
}

func (e *etcd) load(ctx context.Context, l load, where place) (outcome, error) {
	leader, err := e.leader(ctx)
	if err != nil {
		return outcome{}, err
	}
	endpoints := e.endpoints(leader)
	switch where {
	case onLeader:
		endpoints = endpoints[:1]
	case onFollower:
		endpoints = endpoints[1:2]
	}
	before := e.cpu()
	r, err := e.tell(ctx, string(l.kind), endpoints, "-clients", strconv.Itoa(l.clients), "-bytes",
		strconv.Itoa(l.bytes),
		"-prefix", prefix, "-keys", strconv.Itoa(keyCount), "-for", l.length.String())
	r.outcome.CPU = e.cpu() - before
	return r.outcome, err
}

func (e *etcd) fill(ctx context.Context, keys, bytes int) error {
	_, err := e.tell(ctx, "fill", e.endpoints(0), "-clients", "100", "-bytes", strconv.Itoa(bytes), "-prefix", prefix,
		"-keys", strconv.Itoa(keys))
	return err
}

// cpu is the CPU time of the members.
func (e *etcd) cpu() time.Duration {
	var ticks int64
	for _, m := range e.members {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.cmd.Process.Pid))
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(data), ") ")
		if f := strings.Fields(rest); len(f) > 12 {
			user, _ := strconv.ParseInt(f[11], 10, 64)
			system, _ := strconv.ParseInt(f[12], 10, 64)
			ticks += user + system
		}
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond
}

// ticksPerSecond is the unit of /proc/PID/stat on Linux.
const ticksPerSecond = 100

// etcdKills is how often etcd's leader is killed: often enough to show the usual time.
const etcdKills = 10

// etcdFailover measures etcd in the same way: a client that writes through the survivors. It gives
// each try 100 ms, because a try that waits for a dead leader would last for seconds.
func (b *bench) etcdFailover(ctx context.Context) error {
	e, err := b.startEtcd(ctx, 3)
	if err != nil || e == nil {
		return err
	}
	var gaps []time.Duration
	for i := range min(etcdKills, b.kills) {
		gap, err := e.killLeader(ctx)
		if err != nil {
			return errors.Join(err, e.close())
		}
		gaps = append(gaps, gap)
		progress("  etcd, kill %d: writes stopped for %v", i+1, gap)
	}
	printTimes("etcd: the same, of a client of the survivors with tries of 100 ms", gaps)
	return e.close()
}

func (e *etcd) killLeader(ctx context.Context) (time.Duration, error) {
	leader, err := e.leader(ctx)
	if err != nil {
		return 0, err
	}
	m := e.members[leader]
	time.AfterFunc(killAfter, m.kill)
	r, err := e.tell(ctx, string(member.Puts), e.endpoints(leader)[1:], "-clients", "1", "-bytes", "256", "-prefix",
		prefix,
		"-keys", strconv.Itoa(keyCount), "-for", around.String(), "-timeout", "100ms")
	<-m.gone
	for i, arg := range m.args {
		if arg == "new" {
			m.args[i] = "existing"
		}
	}
	return r.LongestGap, errors.Join(err, m.start(e.b.etcd))
}
