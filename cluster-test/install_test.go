package clustertest

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netns"

	"github.com/barque/barque/cluster-test/machines"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/internal/osthread"
)

// TestInstallAndUninstall installs a server on a machine with systemd, runs a pod on it, and takes
// all of it off again. The machine is then as it was: files, mounts, links, routes, rules, settings
// of the kernel, cgroups, processes.
func TestInstallAndUninstall(t *testing.T) {
	if _, err := os.Stat(machines.SystemdProgram); err != nil {
		needs.Missing(t, "systemd (the package systemd)", "installing Barque as a service of systemd")
	}
	t.Parallel()
	d := newDrill(t)
	s := installed{service{d, d.machine("s1", "10.0.0.1", 0, "")}}
	systemd, err := s.m.Systemd()
	if err != nil {
		t.Fatal(err)
	}
	d.running[s.m] = systemd
	s.until("systemctl is-active basic.target", "active")
	// There is no journal. This is for all services, and so part of the machine.
	if err := s.m.WriteUnit("service.d/output.conf",
		"[Service]\nStandardOutput=append:/var/log/services\nStandardError=append:/var/log/services\n"); err != nil {
		t.Fatal(err)
	}
	// The program comes from elsewhere.
	s.inside("cp /usr/local/bin/barque barque && umount /usr/local/bin/barque; rm -f /usr/local/bin/barque; rmdir /etc/barque; mkdir -p /var/log && touch /var/log/services")
	const install = "./barque install server --name=s1 --raft-disk-write-timeout=1m --snapshot-unsealed --eviction-hard='memory.available<100Mi' --zone=a"
	var before *surroundings

	d.stage("a plan changes nothing", func() {
		s.must(Poll(s.Context(), deadline, func(context.Context) error { // their routes come with them
			if out := s.inside("ip -6 address show tentative"); out != "" {
				return fmt.Errorf("addresses of IPv6 are tentative: %s", out)
			}
			return nil
		}))
		before = s.surroundings()
		if out := s.inside(install + " --dry-run"); !strings.Contains(out, "* write /etc/barque/config.yaml") {
			d.Errorf("the plan is\n%s", out)
		}
		s.same(before)
	})
	d.stage("a port that is taken", func() {
		var other net.Listener
		s.must(osthread.Do(func() error { // the socket stays in the network of the thread
			network, err := netns.GetFromPath(s.network())
			if err != nil {
				return err
			}
			defer network.Close()
			if err := netns.Set(network); err != nil {
				return err
			}
			other, err = net.Listen("tcp", ":6443")
			return err
		}))
		r := s.tries(install)
		if r.Code != 4 || !strings.Contains(r.Out, "API port 6443/tcp") ||
			!strings.Contains(r.Err, "nothing was changed") {
			d.Errorf("code %d: %s%s", r.Code, r.Out, r.Err)
		}
		s.must(other.Close())
		s.same(before)
	})
	d.stage("install", func() {
		if out := s.inside(install); !strings.Contains(out, "barque-server serves. Next: barque kubectl get nodes") {
			d.Errorf("it says\n%s", out)
		}
		s.until(s.within("barque kubectl get --raw /readyz"), "ok")
		text := s.inside("cat /etc/barque/config.yaml; stat -c %a /etc/barque/config.yaml")
		if !strings.Contains(text, "zone: a") || !strings.HasSuffix(text, "600") {
			d.Errorf("the settings are\n%s", text)
		}
		if out := s.inside(install); !strings.Contains(out, "is installed so already; nothing was changed") {
			d.Errorf("again it says\n%s", out)
		}
		if r := s.tries(install + " --name other"); r.Code == 0 {
			d.Errorf("another name is taken: %s", r.Out)
		}
		if r := s.tries(strings.Replace(install, "--zone=a", "--zone=b", 1)); r.Code != 4 ||
			!strings.Contains(r.Err, "zone is a, and the command line has b") {
			d.Errorf("another zone: code %d: %s", r.Code, r.Err)
		}
	})
	pod := func() {
		s.must(os.WriteFile(s.m.Path(machines.Home+"/pod.yaml"), []byte(podWithVolume), 0o644))
		s.inside("barque kubectl apply -f pod.yaml")
		s.inside("barque kubectl wait --for=condition=Ready pod/hello --timeout=2m")
	}
	d.stage("a pod with volumes and a Service", pod)
	d.stage("a server that its cluster counts on stays", func() {
		r := s.tries("barque uninstall --yes")
		if r.Code != 4 || !strings.Contains(r.Err, "s1 is the only server of the cluster") {
			d.Errorf("code %d: %s", r.Code, r.Err)
		}
		s.inside("barque kubectl get pod hello")
	})
	d.stage("a removal that is killed goes on", func() {
		p, err := s.m.Start("", s.within("barque uninstall --force --yes"))
		s.must(err)
		s.says(p, "remove pods, and containerd")
		s.must(p.Signal(syscall.SIGKILL))
		<-p.Done()
		if out := s.inside("barque uninstall --force --yes"); !strings.Contains(out, "Barque is off this machine.") {
			d.Errorf("it says\n%s", out)
		}
		if out := s.inside("./barque uninstall --force --yes"); !strings.Contains(out, "nothing was changed") {
			d.Errorf("again it says\n%s", out)
		}
		// The data are there, and nothing else.
		s.same(before, "/etc/barque", "/var/lib/kubelet", "/var/log/pods", "/var/log/containers")
	})
	d.stage("installed again, the cluster goes on", func() {
		s.inside("./barque install server")
		s.inside("barque kubectl wait --for=condition=Ready pod/hello --timeout=2m")
	})
	d.stage("nothing is left", func() {
		out := s.inside("barque uninstall --force --purge --yes")
		if !strings.Contains(out, "Barque is off this machine.") {
			d.Errorf("it says\n%s", out)
		}
		s.same(before)
	})
}

const podWithVolume = `apiVersion: v1
kind: Pod
metadata: {name: hello, labels: {app: hello}, annotations: {kubernetes.io/egress-bandwidth: 100M}}
spec:
  containers:
  - name: hello
    image: barque.local/hello:1
    volumeMounts: [{name: memory, mountPath: /memory}, {name: claim, mountPath: /claim}]
  volumes:
  - name: memory
    emptyDir: {medium: Memory}
  - name: claim
    persistentVolumeClaim: {claimName: hello}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: hello}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
---
apiVersion: v1
kind: Service
metadata: {name: hello}
spec: {type: NodePort, selector: {app: hello}, ports: [{port: 80, targetPort: 8080}]}
`

// installed is a machine on which commands run as a user of systemd's machine does: with its mounts
// and processes.
type installed struct{ service }

// within is a command of a shell there.
func (s installed) within(command string) string {
	return `exec nsenter --target "$(cat /run/systemd.pid)" --mount --pid --cgroup -- env PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin sh -c '` +
		"cd " + machines.Home + "; " + strings.ReplaceAll(command, "'", `'\''`) + "'"
}

// network is the file of the machine's network namespace.
func (s installed) network() string { return strings.TrimSuffix(s.m.Path(""), "/root") + "/ns/net" }

func (s installed) tries(command string) machines.Result { return s.try(s.within(command)) }

func (s installed) inside(command string) string {
	s.Helper()
	r := s.tries(command)
	if r.Error != nil {
		s.Fatalf("%v\nthe services' last words:\n%s", r.Error, Tail(s.m.Path("/var/log/services"), 50))
	}
	return strings.TrimSpace(r.Out)
}

// says waits until a process has said something.
func (s installed) says(p *machines.Process, text string) {
	s.Helper()
	if err := Poll(s.Context(), deadline, func(context.Context) error {
		if !strings.Contains(p.Said(), text) {
			return fmt.Errorf("it has said %q", p.Said())
		}
		return nil
	}); err != nil {
		s.Fatal(err)
	}
}

// surroundings are the things on a machine, by kinds.
type surroundings struct{ all map[string][]string }

// look is the script that prints it. Counters of the kernel are no settings, and files of systemd
// in /run are its own.
const look = `
echo "== mounts"; awk '{ print $5 }' /proc/self/mountinfo
echo "== links"; ip -o link show | awk '{ print $2 }' | sed 's/@.*//'
echo "== addresses"; ip -o address show | awk '{ print $2, $3, $4 }'
echo "== routes"; ip -4 route show table all; ip -6 route show table all | sed 's/ expires [^ ]*//'
echo "== rules"; ip -4 rule; ip -6 rule
echo "== settings"; grep -rH "" /proc/sys/net 2>/dev/null | grep -vE '/neigh/|nf_conntrack_count|_secret'
echo "== cgroups"; find /sys/fs/cgroup -type d
echo "== files"; find / /opt /usr/local -maxdepth 1 -printf '%p\n'
find /etc /usr/local/bin /var/lib /var/log /srv /home /mnt /run ! -path '/run/systemd/*' ! -path '/run/etc/*' ! -path '/home/operator/*' ! -path '/var/lib/barque/*' -printf '%p %y %m %U:%G %l\n'
echo "== contents"; find /etc -type f ! -path '/etc/barque/*' -exec sha256sum {} +
echo "== processes"; for p in /proc/[0-9]*; do tr '\0' ' ' <$p/cmdline 2>/dev/null; echo; done | grep -v 'echo "== mounts"' | grep -vE '^(tr|sort|sh|grep) '
`

func (s installed) surroundings() *surroundings {
	s.Helper()
	of := &surroundings{map[string][]string{}}
	kind := ""
	for line := range strings.Lines(s.inside(look)) {
		line = strings.TrimSpace(line)
		if name, is := strings.CutPrefix(line, "== "); is {
			kind = name
			continue
		}
		if line != "" {
			of.all[kind] = append(of.all[kind], line)
		}
	}
	network, err := os.Open(s.network())
	s.must(err)
	defer network.Close()
	conn, err := nftables.New(nftables.WithNetNSFd(int(network.Fd())))
	s.must(err)
	tables, err := conn.ListTables()
	s.must(err)
	for _, table := range tables {
		of.all["tables"] = append(of.all["tables"], fmt.Sprint(table.Family, " ", table.Name))
	}
	for name := range of.all {
		slices.Sort(of.all[name])
	}
	return of
}

// same wants the surroundings as they were, but for files below some directories.
func (s installed) same(before *surroundings, but ...string) {
	s.Helper()
	if len(before.all["files"]) < 100 || len(before.all["settings"]) < 100 || len(before.all["mounts"]) < 10 ||
		len(before.all["cgroups"]) < 3 || len(before.all["links"]) < 2 {
		s.Fatalf("little is compared: %d files, %d settings", len(before.all["files"]), len(before.all["settings"]))
	}
	now := s.surroundings()
	names := []string{"tables"}
	for name := range now.all {
		names = append(names, name)
	}
	for _, name := range names {
		for _, difference := range differences(before.all[name], now.all[name]) {
			if !slices.ContainsFunc(but, func(dir string) bool { return strings.HasPrefix(difference[2:], dir) }) {
				s.Errorf("%s: %s", name, difference)
			}
		}
	}
}

// differences are the lines that are gone, with a minus, and those that are new, with a plus.
func differences(before, now []string) (all []string) {
	for _, line := range before {
		if !slices.Contains(now, line) {
			all = append(all, "- "+line)
		}
	}
	for _, line := range now {
		if !slices.Contains(before, line) {
			all = append(all, "+ "+line)
		}
	}
	return all
}
