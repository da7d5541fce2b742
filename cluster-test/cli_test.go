package clustertest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/barque/barque/internal/unpack"
	"github.com/barque/barque/pki"
)

// The output and the exit codes of commands when things are wrong: dead servers, no quorum, no
// rights, Ctrl-C.

// timed runs barque and logs how long it takes. A command that does not come to an end is killed.
func (c *Cluster) timed(t testing.TB, args ...string) Result {
	t.Helper()
	began := time.Now()
	r := c.BarqueResult(t.Context(), args...)
	t.Logf("barque %s took %s", strings.Join(args, " "), time.Since(began).Round(time.Millisecond))
	return r
}

// One server dies, then another: the status names the fault and its remedy, and every command ends
// soon and reports its outcome.
func TestCommandsWithoutQuorum(t *testing.T) {
	s := newSpace(t)
	recoverCluster(t, s.Cluster, "s1", "s2", "s3")
	file, key := s.saveBackup(t)
	s1, local := s.address(t, "s1"), "--kubeconfig="+s.kubeconfigFor(t, "s1")
	s.insist(t, "cluster", "transfer-leader", "s3")
	s.Dev(t, "kill", "s3")
	Eventually(t, deadline, "the status tells of a dead server", func(ctx context.Context) error {
		r := s.BarqueResult(ctx, "cluster", "status")
		if r.Code != codeDegraded ||
			!contains(r.Out, "s3 does not answer", " dev start s3 --dir "+s.Dir,
				"; when it is lost for good, from anywhere: barque cluster remove s3", "no answer",
				"2 of 3 voters answer, 2 are needed, none may fail") {
			return fmt.Errorf("code %d\n%s%s", r.Code, r.Out, r.Err)
		}
		return nil
	})
	after, err := s.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if after.Leader == "" || after.Leader == "s3" || !strings.Contains(after.LeaderReason, "s3") ||
		after.LeaderSince.IsZero() {
		t.Errorf("%q leads since %s: %q", after.Leader, after.LeaderSince, after.LeaderReason)
	}
	if r := s.timed(t, "snapshot", "ls"); r.Code != 1 || !contains(r.Out, "server s1, ", "server s3: no answer") ||
		!contains(r.Err, "s3") {
		t.Errorf("snapshot ls: code %d\n%s%s", r.Code, r.Out, r.Err)
	}

	s.Dev(t, "kill", "s2")
	// A request at this moment waits for an election; after ten seconds without one it fails.
	if r := s.timed(t, "kubectl", "get", "pods", local); r.Code != 1 ||
		!contains(r.Err, "ServiceUnavailable", "no leader has been known for", "2 of the 3 servers with a vote") {
		t.Errorf("kubectl without a quorum: code %d\n%s%s", r.Code, r.Out, r.Err)
	}
	status := []string{"cluster", "status", "--server", s1}
	Eventually(t, deadline, "the status tells that there is no quorum", func(ctx context.Context) error {
		r := s.BarqueResult(ctx, status...)
		if r.Code != codeNoQuorum ||
			!contains(r.Out, "WITHOUT A QUORUM", "1 of the 3 servers with a vote answers, and 2 are needed",
				"barque cluster recover --inspect") {
			return fmt.Errorf("code %d\n%s%s", r.Code, r.Out, r.Err)
		}
		return nil
	})
	if r := s.timed(t, append(status, "-o", "json")...); r.Code != codeNoQuorum || !json.Valid([]byte(r.Out)) {
		t.Errorf("in JSON: code %d\n%s%s", r.Code, r.Out, r.Err)
	}
	var asking sync.WaitGroup // all at once: each learns that there is none
	for _, c := range []struct {
		line string
		code int
		says string
	}{
		{"cluster members", 0, ""},
		{"cluster remove s3 --yes", codeNoQuorum, "remove s3: nothing was changed"},
		{"cluster transfer-leader s1", codeNoQuorum, "transfer-leader s1: nothing was changed"},
		{"cluster keys list", codeNoQuorum, "unavailable"},
		{"cert rotate --ca --yes", codeNoQuorum, "nothing was changed"},
		{"snapshot restore " + file + " --key-file " + key + " --yes", codeNoQuorum, "nothing was changed"},
		{"snapshot save --unsealed " + filepath.Join(t.TempDir(), "x.backup"), codeNoQuorum, "unavailable"},
		{"token create", codeNoQuorum, "nothing was changed"},
		{"token delete abcdef", codeNoQuorum, "nothing was changed"},
		{"token ls", codeNoQuorum, "list join tokens"},
		{"kubectl get pods", 1, "no leader has been known for"},
		{"kubectl get pods --watch", 1, "no leader has been known for"},
		{"kubectl get pods --selector a=b", 1, "no leader has been known for"},
		{"kubectl create configmap without-quorum", 1, "the write was not executed"},
		{"kubectl wait --for=delete pod --all", 1, "no leader has been known for"},
	} {
		asking.Go(func() {
			r := s.timed(t, append(strings.Fields(c.line), local)...)
			if r.Code != c.code || !contains(r.Err, c.says) {
				t.Errorf("%s: code %d, want %d\n%s%s", c.line, r.Code, c.code, r.Out, r.Err)
			}
		})
	}
	asking.Wait()
	if r := s.timed(t, "cluster", "doctor", "--output=", "--server", s1); r.Code != codeNoQuorum ||
		!contains(r.Out, "no leader", "s2 gave no diagnosis") {
		t.Errorf("doctor: code %d\n%s%s", r.Code, r.Out, r.Err)
	}

	s.Dev(t, "kill", "s1")
	if r := s.timed(t, status...); r.Code != codeNoAnswer || !contains(r.Err, s1, "--server") {
		t.Errorf("no server at all: code %d\n%s%s", r.Code, r.Out, r.Err)
	}
}

// kubeconfigFor is the administrator's, for one server's own address.
func (c *Cluster) kubeconfigFor(t testing.TB, server string) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(c.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	return c.writeKubeconfig(t, server, *config.AuthInfos[config.Contexts[config.CurrentContext].AuthInfo])
}

// writeKubeconfig writes one for a user, at a server's own address or, without a server, at that of
// all.
func (c *Cluster) writeKubeconfig(t testing.TB, server string, user clientcmdapi.AuthInfo) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(c.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	current := config.Contexts[config.CurrentContext]
	if server != "" {
		config.Clusters[current.Cluster].Server = "https://" + c.address(t, server) + ":6443"
	}
	config.AuthInfos[current.AuthInfo] = &user
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// A user without rights, or without them any more, learns that and the remedy from every command
// that asks a server.
func TestCommandsWithoutRights(t *testing.T) {
	s := newSpace(t)
	s.K("create", "serviceaccount", "somebody")
	plain := s.writeKubeconfig(t, "",
		clientcmdapi.AuthInfo{Token: strings.TrimSpace(s.K("create", "token", "somebody"))})
	expired := s.writeKubeconfig(t, "", s.expiredIdentity(t))
	file, key := s.saveBackup(t)
	for _, line := range []string{"cluster status", "cluster members", "cluster doctor --output=",
		"cluster remove s1 --yes", "cluster promote s1", "cluster demote s1 --yes",
		"cluster transfer-leader", "snapshot ls", "snapshot save --unsealed " + filepath.Join(t.TempDir(), "x.backup"),
		"snapshot restore " + file + " --key-file " + key + " --yes",
		"token create", "token ls", "token delete abcdef"} {
		if r := s.timed(t, append(strings.Fields(line), "--kubeconfig", plain)...); r.Code != 1 ||
			!contains(strings.ToLower(r.Err), "forbidden") && !contains(r.Err, "403") {
			t.Errorf("%s as a plain user: code %d\n%s%s", line, r.Code, r.Out, r.Err)
		}
		if r := s.timed(t, append(strings.Fields(line), "--kubeconfig", expired)...); r.Code != 1 ||
			!contains(r.Err, "ended at", "admin.kubeconfig") {
			t.Errorf("%s with an ended certificate: code %d\n%s%s", line, r.Code, r.Out, r.Err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(file), "*")); err != nil || len(left) != 2 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// expiredIdentity is the administrator's, with a certificate of this cluster that ended long ago.
func (c *Cluster) expiredIdentity(t testing.TB) clientcmdapi.AuthInfo {
	t.Helper()
	dir := filepath.Join(c.DataDir("s1"), "pki")
	certs, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := pki.ParseAuthority(certs, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ca.Issue(
		pki.Request{CommonName: "barque:admin", Organization: []string{"system:masters"}, Usage: pki.Client},
		private.Public(), time.Now().AddDate(-3, 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	data, err := pki.MarshalKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: data}
}

// The doctor's file has the useful facts of every server, and none of the secrets that are all over
// the cluster.
func TestDoctor(t *testing.T) {
	s := newSpace(t)
	secret := "planted-" + strings.ToLower(randomText(t))
	s.K("create", "secret", "generic", "planted", "--from-literal=password="+secret)
	token := strings.TrimSpace(s.Barque(t, "token", "create", "--description", "planted"))
	path := filepath.Join(t.TempDir(), "x.tar.gz")
	r := s.timed(t, "cluster", "doctor", "--output", path)
	if r.Code != 0 && r.Code != codeDegraded || !contains(r.Out, path) {
		t.Fatalf("code %d\n%s%s", r.Code, r.Out, r.Err)
	}
	files := unpack.TarGz(t, path)
	for _, name := range []string{"findings.txt", "examination.json", "nodes.json", "events.txt", "pods.txt",
		"this-machine/machine.txt"} {
		if len(files["x/"+name]) == 0 {
			t.Errorf("%s is not in it", name)
		}
	}
	for _, server := range []string{"s1", "s2", "s3"} {
		for name, want := range map[string]string{"log.txt": "server is ready", "goroutines.txt": "goroutine ",
			"metrics.txt": "barque_", "store.json": `"appliedIndex"`, "members.json": `"voter"`,
			"gossip.json": `"alive"`, "machine.txt": "/proc/meminfo", "options.json": "DataDir", "build.txt": "barque",
			"files.txt": "store/", "check.json": "ok"} {
			if text := string(files["x/servers/"+server+"/"+name]); !strings.Contains(text, want) {
				t.Errorf("%s of %s has no %q: %.200q", name, server, want, text)
			}
		}
	}
	secrets := map[string]string{"the value of a Secret": secret, "a join token": token,
		"its secret": token[strings.LastIndexByte(token, '.')+1:]}
	for _, server := range []string{"s1", "s2", "s3"} {
		s.addKeys(t, server, secrets)
	}
	if len(secrets) < 3+3*4 {
		t.Fatalf("too few secrets are looked for: %d", len(secrets))
	}
	for what, text := range secrets {
		for form, look := range map[string]string{"": text,
			" in base64": base64.StdEncoding.EncodeToString([]byte(text)), " in hex": fmt.Sprintf("%x", text)} {
			for name, content := range files {
				if bytes.Contains(content, []byte(look)) {
					t.Errorf("%s%s is in %s", what, form, name)
				}
			}
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if r := s.BarqueResult(t.Context(), "cluster", "doctor", "--output", path); r.Code != 2 ||
		!contains(r.Err, "exists already") {
		t.Errorf("again: code %d, %s", r.Code, r.Err)
	}
}

func randomText(t testing.TB) string {
	t.Helper()
	b := make([]byte, 8)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", b)
}

// addKeys adds the secrets in a server's data directory: its private keys, and the gossip keys.
func (c *Cluster) addKeys(t testing.TB, server string, secrets map[string]string) {
	t.Helper()
	keys, err := filepath.Glob(filepath.Join(c.DataDir(server), "pki", "*.key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(keys, filepath.Join(c.DataDir(server), "admin.kubeconfig")) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		secrets[server+" "+filepath.Base(path)] = secretOf(t, path, string(data))
	}
	var record struct {
		Cluster struct {
			GossipKeys [][]byte `json:"gossipKeys"`
		} `json:"cluster"`
	}
	data, err := os.ReadFile(filepath.Join(c.DataDir(server), "node.json"))
	if err = errors.Join(err, json.Unmarshal(data, &record)); err != nil {
		t.Fatal(err)
	}
	for _, k := range record.Cluster.GossipKeys {
		secrets[server+" gossip key"] = string(k)
	}
}

// secretOf returns the secret text of a file of pki: the first line of a PEM key, the key in a
// kubeconfig, or all of a gossip key, which is 32 raw bytes of any value.
func secretOf(t testing.TB, path, content string) string {
	t.Helper()
	text := content
	for _, before := range []string{"PRIVATE KEY-----\n", "client-key-data: "} {
		if _, after, ok := strings.Cut(content, before); ok {
			text, _, _ = strings.Cut(after, "\n")
			break
		}
	}
	if len(text) < 32 {
		t.Fatalf("%s: %d bytes are too few to look for", path, len(text))
	}
	return text
}

// A machine that is to join is checked before anything is written, and the files written fit it.
func TestClusterJoin(t *testing.T) {
	c := sharedCluster(t)
	path, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	dir, server := t.TempDir(), c.address(t, "s2")
	mine := server[:strings.LastIndexByte(server, '.')] + ".11" // s1's own
	token := strings.TrimSpace(c.Barque(t, "token", "create", "--role", "server"))
	join := func(args ...string) Result {
		return c.OnResult(t.Context(), "s1",
			append(
				[]string{path, "cluster", "join", "https://" + server + ":6443", "--name", "s9", "--node-ip", mine,
					"--data-dir", filepath.Join(dir, "data"),
					"--config-dir", filepath.Join(dir, "etc"), "--unit-dir", filepath.Join(dir, "units")}, args...)...)
	}
	ports := []string{"--gossip-port", "17946", "--kubelet-port", "20250", "--api-port", "16443", "--peer-port",
		"16444"}
	if r := join("--token", token); r.Code != 1 ||
		!contains(r.Out, "API port 6443/tcp", "address already in use", "--api-port") ||
		!contains(r.Err, "nothing was changed") {
		t.Errorf("ports in use: code %d\n%s%s", r.Code, r.Out, r.Err)
	}
	if r := join(append(ports, "--token", token, "--data-dir", c.DataDir("s1"))...); r.Code != 1 ||
		!contains(r.Out, `belongs to server "s1"`) {
		t.Errorf("a machine that has joined: code %d\n%s%s", r.Code, r.Out, r.Err)
	}
	other := "b2." + strings.Repeat("0", 64) + token[strings.IndexByte(token[3:], '.')+3:]
	if r := join(append(ports, "--token", other)...); r.Code != 1 ||
		!contains(r.Out, "CA that this token was not made for") {
		t.Errorf("another cluster's token: code %d\n%s%s", r.Code, r.Out, r.Err)
	}
	if r := join(append(ports, "--token", token, "--dry-run")...); r.Code != 0 ||
		!contains(r.Out, "clock", "like the server's") {
		t.Errorf("only looked at: code %d\n%s%s", r.Code, r.Out, r.Err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Fatalf("left behind: %v, %v", left, err)
	}
	if err := os.Mkdir(filepath.Join(dir, "units"), 0o755); err != nil {
		t.Fatal(err)
	}
	if r := join(append(ports, "--token", token)...); r.Code != 0 ||
		!contains(r.Out, "systemctl daemon-reload && systemctl enable --now barque-server") {
		t.Errorf("code %d\n%s%s", r.Code, r.Out, r.Err)
	}
	for name, want := range map[string]string{
		"etc/token": token, "units/barque-server.service": "EnvironmentFile=-" + dir + "/etc/server.env",
		"etc/config.yaml.d/90-join.yaml": "join: https://" + server + ":6443\ntoken-file: " + dir + "/etc/token\ndata-dir: " +
			dir + "/data\nname: s9\nnode-ip: [" + mine + "]\ngossip-port: 17946\n",
	} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.Contains(string(data), want) {
			t.Errorf("%s: %v\n%s", name, err, data)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "etc", "token")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the token: %v, %v", info, err)
	}
}

// Ctrl-C at any moment: the command ends soon, with a code that is documented, and leaves nothing
// half done.
func TestCtrlC(t *testing.T) {
	s := newSpace(t)
	recoverCluster(t, s.Cluster)
	dir := t.TempDir()
	file, key := s.saveBackup(t)
	documented := []int{0, 1, 4, 5, 6, 130}
	for _, line := range []string{
		"cluster status", "cluster status --watch", "cluster members",
		"cluster doctor --output " + dir + "/doctor.tar.gz", "cluster remove s3",
		"cluster leave --data-dir " + s.DataDir("s3"),
		"cluster transfer-leader", "cluster demote s3 --yes", "cluster promote s3",
		"snapshot save " + dir + "/save.backup --key-file " + key,
		"snapshot restore " + file + " --key-file " + key + " --yes", "token create", "snapshot ls",
	} {
		for range 3 {
			// a command that was done before it was interrupted
			for _, left := range []string{"doctor.tar.gz", "save.backup"} {
				if err := os.Remove(filepath.Join(dir, left)); err != nil && !os.IsNotExist(err) {
					t.Fatal(err)
				}
			}
			after := time.Duration(mathrand.IntN(1500)) * time.Millisecond
			code, said := s.interrupt(t, after, strings.Fields(line)...)
			if !slices.Contains(documented, code) {
				t.Errorf("%s, interrupted after %s: code %d\n%s", line, after, code, said)
			}
			if entries, err := os.ReadDir(dir); err != nil || slices.ContainsFunc(entries, func(e os.DirEntry) bool {
				return strings.Contains(e.Name(), "unfinished") || strings.Contains(e.Name(), "tmp")
			}) {
				t.Errorf("%s, interrupted after %s, leaves %v behind: %v", line, after, entries, err)
			}
		}
	}
	s.insist(t, "cluster", "promote", "s3") // it may have been demoted
	Eventually(t, deadline, "a whole cluster", func(ctx context.Context) error {
		return errors.Join(s.well(ctx), s.Healthy(ctx))
	})
}

// interrupt runs barque and sends it SIGINT after a while, unless it has ended by then.
func (c *Cluster) interrupt(t testing.TB, after time.Duration, args ...string) (code int, said string) {
	t.Helper()
	path, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	stdin, typing, err := os.Pipe() // no input comes, and it does not end either
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	defer typing.Close()
	var out bytes.Buffer
	cmd := exec.Command(path, args...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = append(os.Environ(), c.env()...), stdin, &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with the process, for which this waits below
	select {
	case <-ended:
		return exitCodeOf(cmd), out.String()
	case <-time.After(after): // brief: Ctrl-C comes at any moment
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	select {
	case <-ended:
	case <-time.After(deadline):
		t.Errorf("barque %s goes on after Ctrl-C", strings.Join(args, " "))
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		<-ended
	}
	return exitCodeOf(cmd), out.String()
}

// exitCodeOf is the exit code as a shell has it. A process that has only begun has no hand on its
// signals yet.
func exitCodeOf(cmd *exec.Cmd) int {
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() &&
		status.Signal() == syscall.SIGINT {
		return 130
	}
	return cmd.ProcessState.ExitCode()
}

// On terminals of different widths nothing is broken in the middle, and colours are for terminals
// only.
func TestStatusOnTerminals(t *testing.T) {
	c := sharedCluster(t)
	path, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"KUBECONFIG=" + c.Kubeconfig(), "TERM=xterm", "NO_COLOR="}
	shown := onTerminal(t, env, "", []int{codeDegraded}, path, "cluster", "status") // the machine may be busy
	if !contains(shown, "\x1b[", "s1", "s2", "s3", "leader", "BEHIND", "GOSSIP") {
		t.Errorf("a terminal shows\n%s", shown)
	}
	for line := range strings.Lines(regexp.MustCompile(`\r|\x1b\[[0-9;]*m`).ReplaceAllString(shown, "")) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 100 {
			t.Errorf("a line of %d columns on a terminal of 100: %q", n, line)
		}
	}
	if r := c.BarqueResult(t.Context(), "cluster", "status"); r.Error != nil && r.Code != codeDegraded ||
		strings.Contains(r.Out, "\x1b") || !contains(r.Out, "VERSION", "TERM", "FROM") {
		t.Errorf("a pipe gets, with code %d,\n%s%s", r.Code, r.Out, r.Err)
	}
}
