package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/internal/exitcode"
)

// TestWrongArguments: every command refuses wrong arguments with exit code 2 and a message that
// names them, before it asks any server.
func TestWrongArguments(t *testing.T) {
	asked := kubeconfigOf(t, func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("the server was asked for %s", r.URL)
		w.WriteHeader(http.StatusTeapot)
	})
	t.Setenv("KUBECONFIG", asked)
	dir := t.TempDir()
	there, key, policy := filepath.Join(dir, "there"), filepath.Join(dir, "key"), filepath.Join(dir, "policy.yaml")
	wrong := "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles: [{schedulerName: ''}]\n"
	if err := errors.Join(os.WriteFile(there, nil, 0o600), os.WriteFile(policy, []byte(wrong), 0o600),
		os.WriteFile(key, []byte("a passphrase"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ line, says string }{
		{"nonsense", `unknown command "nonsense"`},
		{"--nonsense", "unknown flag"},
		{"cluster nonsense", `unknown command "nonsense"`},
		{"cluster status x", `takes no argument, got "x"`},
		{"cluster status -o xml", `"xml": want json or yaml`},
		{"cluster status --interval 1ms", "want 100ms at least"},
		{"cluster status --interval x", "invalid argument"},
		{"cluster status --timeout 0s", "--timeout"},
		{"cluster status --server", "needs an argument"},
		{"cluster status --server https://a/b", `"https://a/b"`},
		{"cluster status --nonsense", "unknown flag"},
		{"cluster status --server 10.0.0.1:99999", "with a port from 1 to 65535"},
		{"cluster status --server :6443", "want HOST or HOST:PORT"},
		{"cluster status --server=", "--server is empty"},
		{"cluster status --data-dir=", "--data-dir is empty"},
		{"help nonsense", `unknown command "nonsense"`},
		{"help cluster nonsense", `unknown command "nonsense" for "barque cluster"`},
		{"completion nonsense", `unknown command "nonsense"`},
		{"completion bash x", `it takes no argument, got "x"`},
		{"cluster members x", "takes no argument"},
		{"cluster members -o xml", `"xml"`},
		{"cluster doctor x", "takes no argument"},
		{"cluster doctor --format xml", `"xml"`},
		{"cluster doctor --output " + there, "exists already"},
		{"cluster doctor --output " + dir + "/no/x", "no directory"},
		{"cluster remove", "want 1 argument (SERVER), got 0"},
		{"cluster remove a b", "got 2"},
		{"cluster remove a -o xml", `"xml"`},
		{"cluster promote", "got 0"},
		{"cluster promote a b", "got 2"},
		{"cluster demote", "got 0"},
		{"cluster demote a -o xml", `"xml"`},
		{"cluster transfer-leader a b", "one server at most"},
		{"cluster transfer-leader -o xml", `"xml"`},
		{"cluster leave s1", "it takes no argument, got \"s1\""},
		{"cluster leave --server 10.0.0.3/x", "want HOST or HOST:PORT"},
		{"cluster leave --server 10.0.0.3 --data-dir " + dir, "both select the leaving server"},
		{"cluster recover x", "takes no argument"},
		{"cluster recover -o xml", `"xml"`},
		{"install king", `unknown command "king" for "barque install"`},
		{"install server x", `takes no argument, got "x"`},
		{"install server --tls-sans a", "unknown flag"},
		{"install server --zone=", "--zone is empty"},
		{"install server --wipe", "--wipe is done once"},
		{"install agent --token x --token-file " + there, "not both"},
		{"uninstall x", `takes no argument, got "x"`},
		{"uninstall --data-dir=", "--data-dir is empty"},
		{"cluster join", "got 0"},
		{"cluster join https://a:6443", "needs a token"},
		{"cluster join ftp://a --token x", `"ftp://a"`},
		{"cluster join https://a:6443 --token x --token-file " + there, "not both"},
		{"cluster join https://a:6443 --token x --role king", `--role "king"`},
		{"cluster join https://a:6443 --token x -o xml", `"xml"`},
		{"ingress convert x", "takes no argument"},
		{"ingress convert -A -n web", "--all-namespaces goes without"},
		{"ingress convert -A -f " + there, "--all-namespaces goes without"},
		{"ingress convert --ingress-class=", "--ingress-class is empty"},
		{"snapshot nonsense", "unknown command"},
		{"snapshot save a b", "one file at most"},
		{"snapshot save -o xml", `"xml"`},
		{"snapshot save " + there, "exists already"},
		{"snapshot save " + dir + "/no/x", "directory"},
		{"snapshot save --unsealed --key-file " + key + " " + dir + "/x", "leave one of them out"},
		{"snapshot restore", "got 0"},
		{"snapshot restore a b", "got 2"},
		{"snapshot restore " + there + " --wait -1s", "--wait"},
		{"snapshot restore " + there + " -o xml", `"xml"`},
		{"snapshot inspect", "got 0"},
		{"snapshot inspect " + there + " -o xml", `"xml"`},
		{"snapshot ls x", "takes no argument"},
		{"snapshot ls -o xml", `"xml"`},
		{"snapshot key x", "takes no argument"},
		{"token nonsense", "unknown command"},
		{"token create x", "takes no argument"},
		{"token create --ttl x", "invalid argument"},
		{"token create --ttl -1h", "--ttl"},
		{"token create --ttl 1ms", "want 1m0s at least, or 0 for ever"},
		{"token create --ttl 59s", "want 1m0s at least, or 0 for ever"},
		{"token create --uses -1", "--uses"},
		{"token create --role king", `--role "king"`},
		{"token create -o xml", `"xml"`},
		{"token create --uses x", "invalid argument"},
		{"token ls x", "takes no argument"},
		{"token ls -o xml", `"xml"`},
		{"token delete", "got 0"},
		{"check x:6443", "want the address or the host name"},
		{"check --role king 10.0.0.1", `--role "king"`},
		{"check -o xml", `"xml"`},
		{"version x", "takes no argument"},
		{"version -o xml", `"xml"`},
		{"server --scheduler-config-file=", "--scheduler-config-file is empty"},
		{"server --scheduler-config-file " + dir + "/no", "no such file"},
		{"server --scheduler-config-file " + policy, policy + ": profiles[0].schedulerName: Required value"},
		{"proxy", "give at least one --server"},
		{"proxy --server x", `--server "x"`},
		{"proxy x", "takes no argument"},
		{"server x", "takes no argument"},
		{"server --token a --token-file b", "not both"},
		{"server --wipe", "give --join"},
		{"server --replace", "give --join"},
		{"server --node-label x", "want key=value"},
		{"server --log-level loud", "want debug"},
		{"server --cluster-cidr x", "--cluster-cidr"},
		{"server --raft-log-store x", "want boltdb or wal"},
		{"server --raft-disk-reserve -1", "cannot be negative"},
		{"server --raft-snapshot-entries 5", "want 100 at least"},
		{"server --raft-snapshot-entries -5", "invalid argument"},
		{"server --store-memory-limit 1", "16Mi at least"},
		{"server --api-port 70000", "invalid argument"},
		{"agent x", "takes no argument"},
		{"agent --log-level loud", "want debug"},
		{"dev kill", "got 0"},
		{"dev nonsense", "unknown command"},
		{"dev exec s1", "want a node and a command"},
		{"dev partition", "got 0"},
		{"dev up --servers 0", "want 1 to 9 servers"},
		{"dev up --name Big", "lower-case letters"},
		{"dev up --agents x", "invalid argument"},
		{"dev up x", "takes no argument"},
		{"dev down x", "takes no argument"},
		{"dev status -o xml", `"xml"`},
		{"dev heal x", "takes no argument"},
		{"dev start", "got 0"},
		{"cluster recover --data-dir " + dir + "/none --inspect",
			"is no server's data directory: give its own with --data-dir"},
		{"cluster leave --data-dir " + dir + "/none", "is no server's data directory"},
		{"cert show x", "takes no argument"},
		{"cert show -o xml", `"xml"`},
		{"cert rotate --undo", "give --ca"},
		{"cert rotate --ca --service-accounts", "as well"},
		{"cert rotate --service-accounts --server s1", "give one of them"},
		{"cert rotate --ca --server s1", "give one of them"},
		{"cert rotate --ca --undo --force", "contradict"},
		{"cluster keys nonsense", "unknown command"},
		{"cluster keys list x", "takes no argument"},
		{"cluster keys list -o xml", `"xml"`},
		{"cluster keys rotate --force --undo", "not both"},
		{"cluster keys rotate --wait -1s", "--wait"},
		{"verify x", "takes no argument"},
		{"verify --duration 0s", "--duration"},
		{"verify -o xml", `"xml"`},
		{"check --data-dir=", "--data-dir is empty"},
		{"server --node-taint x", "--node-taint: taint \"x\": want key=value:NoSchedule"},
		{"agent --node-taint x:No", "--node-taint"},
		{"server --node-label a/b/c=d", `--node-label "a/b/c=d"`},
		{"server --snapshot-schedule 1ms", "want 1m0s at least, or 0 for never"},
		{"server --dead-server-cleanup-after -1h", "is negative"},
		{"server --min-voters 0", "want 1 at least"},
		{"server --peer-port 6443", "--api-port and --peer-port are both 6443"},
		{"server --peer-port 0", "--peer-port 0: want a port"},
		{"server --api-port 0", "--api-port 0: want a port"},
		{"agent --kubelet-port 7946 --gossip-port 7946", "--gossip-port and --kubelet-port are both 7946"},
		{"proxy --server 10.0.0.1:6443 --listen x", `--listen "x": want HOST:PORT`},
		{"proxy --server 10.0.0.1:6443 --listen 127.0.0.1:99999", "want HOST:PORT"},
		{"cert rotate --wait=false", "give --ca"},
		{"token create --description " + strings.Repeat("x", 201), "want one line of 200 bytes at most"},
		{"token create --description a\x00b", "want one line"},
		{"token delete x/y", `there is no token "x/y"`},
		{"server --log-level loud --join=", "--join is empty"},
		{"server --log-level loud --token-file=", "--token-file is empty"},
		{"server --enable-admission-plugins Nobody", "unknown admission plugin"},
		{"server --disable-admission-plugins Priority --enable-admission-plugins Priority", "take it out of one"},
		{"server --max-requests-inflight -1", "want 0 or more"},
		{"server --max-requests-inflight 0 --max-mutating-requests-inflight 0", "give one of them more than 0"},
		{"agent --server=", "--server is empty"},
		{"cert rotate --server=", "--server is empty"},
		{"dev up --servers 0 --dir=", "--dir is empty"},
		{"cluster recover --data-dir= --inspect", "--data-dir is empty"},
		{"cluster status --kubeconfig=", "--kubeconfig is empty"},
		{"cluster remove s1 --yes --kubeconfig=", "--kubeconfig is empty"},
		{"cluster keys rotate --kubeconfig=", "--kubeconfig is empty"},
		{"token create --kubeconfig=", "--kubeconfig is empty"},
		{"cert rotate --ca --yes --kubeconfig=", "--kubeconfig is empty"},
		{"snapshot restore --yes --kubeconfig= " + there, "--kubeconfig is empty"},
		{"verify --kubeconfig=", "--kubeconfig is empty"},
		{"cluster recover --inspect --data-dir " + dir + " --data-dir=", "--data-dir is empty"},
		// Another wrong flag keeps them from starting if this check fails.
		{"server --log-level loud --container-runtime-endpoint=", "--container-runtime-endpoint is empty"},
		{"server --log-level loud --peers=", "--peers is empty"},
		{"server --log-level loud --cluster-cidr=", "--cluster-cidr is empty"},
		{"server --log-level loud --controllers=", "--controllers is empty"},
		{"server --log-level loud --default-storage-class=", "--default-storage-class is empty"},
		{"server --log-level loud --local-volumes-dir=", "--local-volumes-dir is empty"},
		{"server --log-level loud --kubelet-config=", "--kubelet-config is empty"},
		{"server --log-level loud --kubelet-config-dir=", "--kubelet-config-dir is empty"},
		{"server --log-level loud --pod-manifest-path=", "--pod-manifest-path is empty"},
		{"server --log-level loud --provider-id=", "--provider-id is empty"},
		{"server --log-level loud --allowed-unsafe-sysctls=", "--allowed-unsafe-sysctls is empty"},
		{"server --log-level loud --eviction-hard=", "--eviction-hard is empty"},
		{"server --log-level loud --eviction-soft=", "--eviction-soft is empty"},
		{"agent --log-level loud --eviction-hard memory.available=1Gi",
			`--eviction-hard "memory.available=1Gi": want SIGNAL<VALUE`},
		{"agent --log-level loud --max-pods 0", "--max-pods 0: want 1 at least"},
		{"agent --log-level loud --eviction-pressure-transition-period 0s",
			"--eviction-pressure-transition-period 0s: want more than 0"},
		// The name keeps a server from starting if these checks fail.
		{"server --authentication-config=", "--authentication-config is empty"},
		{"server --oidc-groups-prefix=", "--oidc-groups-prefix is empty"},
		{"server --name Bad_Name --oidc-issuer-url https://i.example", "--oidc-client-id"},
		{"server --name Bad_Name --authorization-mode AlwaysAllow", "AlwaysAllow is not served"},
		{"server --name Bad_Name --authorization-config /nonexistent",
			"--authorization-config /nonexistent: no such file or directory"},
		{"user add ann --group=", "--group is empty"},
		{"user add ann --ttl 1m", "--ttl 1m0s: want 10m0s"},
		{"user add ann --group system:masters", "barque:admins"},
		{"user add system:node:n1", "reserved"},
		{"user revoke", "give either the NAME of a user, or --serial"},
		{"user revoke ann --serial 0a", "give either the NAME of a user, or --serial"},
		{"user revoke ann bob", "want one NAME, got 2"},
		{"user revoke --serial xyz", "want up to 20 bytes"},
		{"user revoke barque:admin", "one of the cluster's own parts"},
		{"user revoke system:node:a1 --force", "one of the cluster's own parts"},
		{"user revoke ann -o xml", `"xml"`},
		{"dev up --servers 0 --server-arg=", "--server-arg is empty"},
		{"cluster remove ''", "an argument is empty"},
		{"cluster promote ''", "an argument is empty"},
		{"cluster transfer-leader ''", "an argument is empty"},
		{"snapshot save ''", "an argument is empty"},
		{"snapshot inspect ''", "an argument is empty"},
		{"token delete ''", "an argument is empty"},
		{"dev kill ''", "an argument is empty"},
		{"dev exec '' true", "an argument is empty"},
	} {
		var args []string
		for _, word := range strings.Fields(c.line) {
			args = append(args, strings.Trim(word, "'"))
		}
		_, err := run(t, args...)
		if exitCode(err) != 2 || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: exit code %d, %v; want 2, with %q", c.line, exitCode(err), err, c.says)
		}
	}
}

// TestFlagsThatMayBeEmpty: every text flag is in one of two lists: an empty value, such as an unset
// shell variable, is allowed or refused.
func TestFlagsThatMayBeEmpty(t *testing.T) {
	mayBe := map[string]string{
		"output":        "text for people; no file of the doctor",
		"format":        "text for people",
		"why":           "none",
		"gateway-ports": "no listener of a Gateway", "gateway-trusted-proxies": "none",
		"gateway-proxy-protocol": "none",
		"cloud-provider":         "none",
		"description":            "none",
		"token":                  "none; where one is needed that is told, and who has joined needs none",
		"log-level":              "refused as a level",
		"node-label":             "refused as a label",

		"enable-admission-plugins":  "none",
		"audit-log-path":            "no file, as for kube-apiserver",
		"disable-admission-plugins": "none",
	}
	seen := map[string]bool{}
	var look func(c *cobra.Command)
	look = func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if takes := f.Value.Type(); !strings.HasPrefix(takes, "string") {
				return
			}
			seen[f.Name] = true
			if _, decided := mayBe[f.Name]; decided == slices.Contains(command.MayNotBeEmpty, f.Name) {
				t.Errorf("%s --%s: may it be empty, or not? Both lists say %v", c.CommandPath(), f.Name, decided)
			}
		})
		for _, sub := range c.Commands() {
			look(sub)
		}
	}
	look(root())
	for _, name := range append(slices.Sorted(maps.Keys(mayBe)), command.MayNotBeEmpty...) {
		if !seen[name] {
			t.Errorf("no command has a flag --%s that takes text", name)
		}
	}
}

// TestRemovedAlready: repeating a finished removal is no failure and asks no question.
func TestRemovedAlready(t *testing.T) {
	kubeconfig := kubeconfigOf(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		io.WriteString(w, `{"server": "s3", "change": "remove", "gone": true, "voters": {}, "mayFail": {}}`)
	})
	for _, flags := range []string{"", " --yes", " --dry-run"} {
		out, err := run(t, strings.Fields("cluster remove s3 --kubeconfig "+kubeconfig+flags)...)
		if err != nil || out != "s3 is no member of the store any more; nothing is to be done\n" {
			t.Errorf("remove s3%s: %v, %q", flags, err, out)
		}
	}
}

// TestLeaveIsCalledSo: it is the removal of this machine's server, and its errors have the name
// that the user gave.
func TestLeaveIsCalledSo(t *testing.T) {
	dir := t.TempDir()
	kubeconfig := kubeconfigOf(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusConflict)
		io.WriteString(w,
			`{"server": "s3", "change": "remove", "refused": true, "error": "no quorum would stay", "voters": {}, "mayFail": {}}`)
	})
	if err := os.WriteFile(filepath.Join(dir, "node.json"), []byte(`{"format": 3, "name": "s3", "role": "server"}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	_, err := run(t, "cluster", "leave", "--yes", "--data-dir", dir, "--kubeconfig", kubeconfig)
	if exitCode(err) != exitcode.Refused || !strings.HasPrefix(err.Error(), "leave s3: refused") {
		t.Errorf("exit code %d: %v", exitCode(err), err)
	}
}

// TestLeaveOfTheServerAtAnAddress: --server is the address of the leaving server. The command asks
// that server for its name and prints it before any change. The kubeconfig only gives the identity.
func TestLeaveOfTheServerAtAnAddress(t *testing.T) {
	kubeconfig := secureKubeconfigOf(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the kubeconfig's server is asked: %s %s", r.Method, r.URL)
	}))
	refuses, changes := false, 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == clusterstatus.StatusPath:
			io.WriteString(w, `{"cluster": "c", "from": "s3"}`)
			return
		case r.URL.Path != adminapi.MembersPath+"/s3" || r.URL.Query().Get("change") != "remove":
			t.Errorf("%s %s", r.Method, r.URL)
		case refuses:
			w.WriteHeader(http.StatusConflict)
			io.WriteString(w,
				`{"server": "s3", "change": "remove", "refused": true, "error": "s1 alone would be no quorum of s1, s2", "voters": {}, "mayFail": {}}`)
			return
		case r.Method == http.MethodPost:
			changes++
		}
		io.WriteString(w,
			`{"server": "s3", "change": "remove", "steps": ["s3 loses its vote"], "voters": {}, "mayFail": {}}`)
	}))
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "https://")
	leave := func(args ...string) (out, said string, err error) {
		cmd, stdout, stderr := root(), new(strings.Builder), new(strings.Builder)
		cmd.SetArgs(append([]string{"cluster", "leave", "--server", address, "--kubeconfig", kubeconfig}, args...))
		cmd.SetIn(strings.NewReader(""))
		cmd.SetOut(stdout)
		cmd.SetErr(stderr)
		err = cmd.ExecuteContext(t.Context())
		return stdout.String(), stderr.String(), err
	}
	plan := "Server s3, which answers at https://" + address + ", leaves the cluster:\n1. s3 loses its vote\n"
	if out, _, err := leave("--dry-run"); err != nil || out != plan {
		t.Errorf("--dry-run: %v, %q", err, out)
	}
	if _, said, err := leave(); exitCode(err) != exitcode.Refused || said != plan+"Go on? [y/N] " {
		t.Errorf("not confirmed: exit code %d, %v, %q", exitCode(err), err, said)
	}
	if changes != 0 {
		t.Errorf("%d changes", changes)
	}
	if out, said, err := leave("--yes"); err != nil || said != plan ||
		out != "s3 was taken out of the store; if it runs, it stops now\n" || changes != 1 {
		t.Errorf("confirmed: %v, %q, %q, %d changes", err, out, said, changes)
	}
	refuses = true
	if _, _, err := leave("--yes"); exitCode(err) != exitcode.Refused ||
		err.Error() != "leave s3: refused, nothing was changed: s1 alone would be no quorum of s1, s2" {
		t.Errorf("without a quorum: exit code %d, %v", exitCode(err), err)
	}
	address = strings.TrimPrefix(deadServer, "https://")
	if _, _, err := leave("--yes"); exitCode(err) != 1 || !strings.Contains(err.Error(), "nothing was changed") ||
		!strings.Contains(err.Error(), "barque cluster remove SERVER") {
		t.Errorf("a dead server: exit code %d, %v", exitCode(err), err)
	}
	if changes != 1 {
		t.Errorf("%d changes", changes)
	}
}

// TestGroupsShowHelp: a command that only has others below it shows them.
func TestGroupsShowHelp(t *testing.T) {
	for _, group := range []string{"cluster", "cluster keys", "snapshot", "token", "cert", "dev"} {
		if out, err := run(t, strings.Fields(group)...); err != nil || !strings.Contains(out, "Available Commands") {
			t.Errorf("%s: %v\n%s", group, err, out)
		}
	}
}

// TestEveryCommandHelps: each command has a short description, and those that change something have
// examples.
func TestEveryCommandHelps(t *testing.T) {
	out, err := run(t, "cluster", "--help")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"status", "members", "doctor", "join", "leave", "remove", "promote", "demote",
		"transfer-leader", "recover"} {
		if !strings.Contains(out, "\n  "+name+" ") {
			t.Errorf("%s is not listed", name)
		}
		help, err := run(t, "cluster", name, "--help")
		if err != nil || !strings.Contains(help, "Examples:") {
			t.Errorf("cluster %s --help: %v\n%s", name, err, help)
		}
	}
}

// TestServerThatHangs: a server that accepts the connection and never answers costs --timeout, and
// is named.
func TestServerThatHangs(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	address := "https://" + listener.Addr().String()
	path := kubeconfigOf(t, http.NotFound)
	// brief: the test wants the time-out
	_, err = run(t, "cluster", "status", "--kubeconfig", path, "--server", address, "--timeout", "200ms")
	if exitCode(err) != exitcode.NoAnswer || !strings.Contains(err.Error(), address) ||
		!strings.Contains(err.Error(), "no answer within 200ms") {
		t.Errorf("exit code %d: %v", exitCode(err), err)
	}
}

// deadServer has no listener. The port of a closed test server could be reused.
const deadServer = "https://127.0.0.1:1"

// TestDeadServer: an address without a listener is reported at once, with the next step.
func TestDeadServer(t *testing.T) {
	address := strings.TrimPrefix(deadServer, "https://")
	path := kubeconfigOf(t, http.NotFound)
	for _, line := range []string{"status", "members", "doctor --output="} {
		_, err := run(t,
			append(strings.Fields("cluster "+line), "--kubeconfig", path, "--server", address, "--data-dir",
				t.TempDir())...)
		if exitCode(err) != exitcode.NoAnswer {
			t.Errorf("%s: exit code %d: %v", line, exitCode(err), err)
		}
	}
	_, err := run(t, "cluster", "status", "--kubeconfig", path, "--server", address)
	if err == nil || !strings.Contains(err.Error(), address) || !strings.Contains(err.Error(), "connection refused") ||
		!strings.Contains(err.Error(), "--server") {
		t.Error(err)
	}
}

// TestCtrlCAtTheQuestion: it is a no.
func TestCtrlCAtTheQuestion(t *testing.T) {
	cmd := root()
	reader, writer := io.Pipe()
	defer writer.Close()
	ctx, cancel := context.WithCancel(t.Context())
	asked := writerFunc(func(p []byte) (int, error) {
		if strings.Contains(string(p), "[y/N]") {
			cancel()
		}
		return len(p), nil
	})
	cmd.SetArgs(
		[]string{"cluster", "remove", "s1", "--kubeconfig",
			kubeconfigOf(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet {
					t.Error("it went on")
				}
				io.WriteString(w, `{"server": "s1", "change": "remove", "steps": ["s1 goes"]}`)
			})})
	cmd.SetIn(reader)
	cmd.SetOut(io.Discard)
	cmd.SetErr(asked)
	if err := interrupted(ctx, cmd.ExecuteContext(ctx)); exitCode(err) != exitcode.Refused ||
		!strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("exit code %d: %v", exitCode(err), err)
	}
}

// TestCtrlCInTheMiddle: a command that is interrupted while it waits for the answer reports the
// state, and the command that shows it.
func TestCtrlCInTheMiddle(t *testing.T) {
	dir := t.TempDir()
	for line, c := range map[string]struct {
		at   string // the method of the request that is not answered
		code int
		says string
	}{
		"cluster transfer-leader s2": {http.MethodPost, exitcode.Unfinished,
			"transfer-leader s2: interrupted; the servers finish the change: `barque cluster status` shows the leader"},
		"cluster demote s2 --yes": {http.MethodPost, exitcode.Unfinished,
			"demote s2: interrupted; the servers finish the change: `barque cluster members` shows whether it was done"},
		"cluster remove s2 --yes": {http.MethodPost, exitcode.Unfinished,
			"remove s2: interrupted; "},
		"cluster promote s2": {http.MethodPost, exitcode.Unfinished,
			"promote s2: interrupted; "},
		"cluster demote s3 --yes": {http.MethodGet, exitcode.Interrupted,
			"demote s3: interrupted; nothing was changed"},
		"cluster transfer-leader --dry-run": {http.MethodGet, exitcode.Interrupted,
			"transfer-leader: interrupted; nothing was changed"},
		"cluster status --timeout 2m": {http.MethodGet, exitcode.Interrupted,
			"interrupted; nothing was changed"},
		"cluster doctor --timeout 2m --output " + dir + "/d": {http.MethodGet, exitcode.Interrupted,
			"interrupted; nothing was changed"},
		"cluster keys rotate": {http.MethodPost, exitcode.Unfinished,
			"`barque cluster keys list` shows whether it was begun"},
		"snapshot save --unsealed " + dir + "/x": {http.MethodPost, exitcode.Interrupted,
			"save a backup: interrupted; no file was written"},
		"snapshot ls": {http.MethodGet, exitcode.Interrupted,
			"interrupted; nothing was changed"},
		"token ls": {http.MethodGet, exitcode.Interrupted,
			"interrupted; nothing was changed"},
		"token delete abcdef": {http.MethodDelete, exitcode.Unfinished,
			"`barque token ls` shows whether it is still there"},
		"cert show": {http.MethodGet, exitcode.Interrupted,
			"interrupted; nothing was changed"},
		"cert rotate --ca --yes": {http.MethodPost, exitcode.Unfinished,
			"`barque cert show` tells"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		kubeconfig := kubeconfigOf(t, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			if r.Method == c.at {
				cancel()
				<-r.Context().Done()
				return
			}
			io.WriteString(w, `{"server": "s2", "change": "x", "steps": ["s2 changes"]}`)
		})
		cmd := root()
		cmd.SetArgs(append(strings.Fields(line), "--kubeconfig", kubeconfig))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := interrupted(ctx, cmd.ExecuteContext(ctx)); exitCode(err) != c.code ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: exit code %d, %v; want %d, with %q", line, exitCode(err), err, c.code, c.says)
		}
		cancel()
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestThePlanIsAlwaysTold: the effect on the quorum is also printed with --yes, and not on standard
// output.
func TestThePlanIsAlwaysTold(t *testing.T) {
	kubeconfig := kubeconfigOf(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w,
			`{"server": "s2", "change": "remove", "done": true, "steps": ["s2 loses its vote"], "voters": {"before": 2, "after": 1}, "mayFail": {}}`)
	})
	for _, args := range [][]string{{"remove", "s2"}, {"demote", "s2"}} {
		cmd, out, said := root(), new(strings.Builder), new(strings.Builder)
		cmd.SetArgs(append(append([]string{"cluster"}, args...), "--yes", "-o", "json", "--kubeconfig", kubeconfig))
		cmd.SetOut(out)
		cmd.SetErr(said)
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Errorf("%v: %v", args, err)
		}
		if want := "1. s2 loses its vote\nThen 1 server votes instead of 2, and as before, none may fail at once without harm.\n"; said.String() != want {
			t.Errorf("%v says %q, want %q", args, said, want)
		}
		if !json.Valid([]byte(out.String())) {
			t.Errorf("%v: %s", args, out)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestInterrupted: an interruption has its own exit code, unless more is known.
func TestInterrupted(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		code int
	}{
		"nothing wrong":  {over, nil, 0},
		"interrupted":    {over, context.Canceled, exitcode.Interrupted},
		"another reason": {over, errors.New("x"), 1},
		"begun": {over, &exitcode.Error{Code: exitcode.Unfinished, Err: context.Canceled},
			exitcode.Unfinished},
		"given up, not asked": {t.Context(), context.Canceled, 1},
	} {
		if code := exitCode(interrupted(c.ctx, c.err)); code != c.code {
			t.Errorf("%s: %d, want %d", name, code, c.code)
		}
	}
}

// TestWithoutRoot: a permission error on a file of this machine gets advice, and keeps its exit
// code.
func TestWithoutRoot(t *testing.T) {
	denied := fmt.Errorf("open x: %w", syscall.EACCES)
	for name, c := range map[string]struct {
		user int
		err  error
		want string
		code int
	}{
		"done":   {1000, nil, "<nil>", 0},
		"root":   {0, denied, "open x: permission denied", 1},
		"a user": {1000, denied, "open x: permission denied; run this as root", 1},
		"with a code": {1000, &exitcode.Error{Code: exitcode.Refused, Err: denied},
			"open x: permission denied; run this as root", exitcode.Refused},
		"told already": {1000, fmt.Errorf("run it as root: %w", denied), "run it as root: open x: permission denied",
			1},
		"another mistake": {1000, errors.New("x"), "x", 1},
	} {
		if got := withoutRoot(c.user, c.err); fmt.Sprint(got) != c.want || exitCode(got) != c.code {
			t.Errorf("%s: %v, exit code %d", name, got, exitCode(got))
		}
	}
}

// TestCompletion: the scripts exist, and the shell gets the values of flags.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if out, err := run(t, "completion", shell); err != nil || !strings.Contains(out, "barque") {
			t.Errorf("%s: %v", shell, err)
		}
	}
	if out, err := run(t, "__complete", "cluster", "status", "-o", ""); err != nil ||
		!strings.Contains(out, "json\nyaml\n") {
		t.Errorf("%v: %q", err, out)
	}
	server := kubeconfigOf(t, func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w,
			`{"cluster": "c", "from": "s1", "nodes": [{"node": "s1", "role": "server"}, {"node": "a1", "role": "agent"}, {"node": "s2", "role": "server"}]}`)
	})
	out, err := "", error(nil)
	// On a busy machine the names may arrive after the user's patience: then there are no
	// proposals.
	for end := time.Now().Add(time.Minute); time.Now().Before(end) && !strings.Contains(out, "s1"); {
		out, err = run(t, "__complete", "cluster", "remove", "--kubeconfig", server, "")
	}
	if err != nil || !strings.Contains(out, "s1\ns2\n") || strings.Contains(out, "a1") {
		t.Errorf("%v: %q", err, out)
	}
}

// TestNodeFlagNames: `cluster join` passes all flags of a node on, also new ones.
func TestNodeFlagNames(t *testing.T) {
	usage := agentCommand().LocalFlags().FlagUsages()
	for _, line := range strings.Split(usage, "\n") {
		_, rest, ok := strings.Cut(line, "--")
		name, _, _ := strings.Cut(rest, " ")
		if !ok || name == "" {
			continue
		}
		own := []string{"token", "token-file", "server", "rejoin", "api-port", "config"}
		if !slices.Contains(own, name) && !slices.Contains(nodeFlagNames, name) {
			t.Errorf("--%s of an agent is in no list", name)
		}
	}
}
