package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/devcluster"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/internal/terminal"
	"github.com/barque/barque/internal/unpack"
)

// TestDoctorAsksWhoAnswers: with --server nothing at all is asked of the kubeconfig's server, which
// may be dead, and cost each question its patience.
func TestDoctorAsksWhoAnswers(t *testing.T) {
	var asked []string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/barque/v1/status":
			io.WriteString(w, `{"cluster": "c", "from": "s1", "nodes": [{"node": "s1", "role": "server", "state": "alive"}]}`)
		case "/barque/v1/diagnosis":
			asked = append(asked, r.URL.Query().Get("on"))
			io.WriteString(w, `{"server": "s1", "files": {"log.txt": "all is well"}}`)
		default:
			w.Header().Set("Content-Type", "application/json")
			kind := map[string]string{"nodes": "Node", "events": "Event", "pods": "Pod"}[path.Base(r.URL.Path)]
			fmt.Fprintf(w, `{"kind": "%sList", "apiVersion": "v1", "items": [{"metadata": {"name": "n1"}}]}`, kind)
		}
	}))
	defer server.Close()
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	dir := t.TempDir()
	kubeconfig, archive := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "d.tar.gz")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: c, cluster: {server: 'https://" + dead.Addr().String() +
		"', insecure-skip-tls-verify: true}}]\nusers: [{name: u, user: {}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// Whatever is asked of the dead one is answered by nobody, and seen here.
	touched := make(chan struct{})
	go func() {
		defer close(touched)
		if conn, err := dead.Accept(); err == nil {
			t.Error("the kubeconfig's server was asked")
			conn.Close()
		}
	}()
	out, err := run(t, "cluster", "doctor", "--kubeconfig", kubeconfig, "--server", strings.TrimPrefix(server.URL, "https://"), "--data-dir", dir, "--output", archive, "--format", "json", "--timeout", "1m")
	dead.Close()
	<-touched
	if code := exitCode(err); code != exitcode.NoQuorum { // the store of s1 has told nothing
		t.Errorf("exit code %d: %v", code, err)
	}
	var found struct{ Silent map[string]string }
	if err := json.Unmarshal([]byte(out), &found); err != nil || len(found.Silent) > 0 {
		t.Errorf("%v: %s", err, out)
	}
	if len(asked) != 1 || asked[0] != "s1" {
		t.Errorf("diagnoses of %q were asked for", asked)
	}
	files := unpack.TarGz(t, archive)
	nodes, log := string(files["d/nodes.json"]), string(files["d/servers/s1/log.txt"])
	if !strings.Contains(nodes, "n1") || log != "all is well" {
		t.Errorf("nodes.json is %q, log.txt %q", nodes, log)
	}
}

// TestDoctorThatCannotSay: what it finds is not lost in silence.
func TestDoctorThatCannotSay(t *testing.T) {
	full := writerFunc(func([]byte) (int, error) { return 0, syscall.ENOSPC })
	for _, e := range []*examination{{}, {Examination: clusterstatus.Examination{Findings: []clusterstatus.Warning{{Text: "x"}}}}} {
		if err := e.write(full, terminal.Screen{}); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%v", err)
		}
	}
}

// TestMendsOfADevCluster: they are dev commands, for the state that the node is in, and run here.
func TestMendsOfADevCluster(t *testing.T) {
	here := t.TempDir()
	t.Chdir(here)
	t.Setenv("SUDO_UID", "")
	state := &devcluster.Status{Nodes: []devcluster.NodeStatus{{Name: "s1", Role: devcluster.Server, State: devcluster.Running}, {Name: "s2", Role: devcluster.Server, State: devcluster.Paused},
		{Name: "s3", Role: devcluster.Server, State: devcluster.Dead}, {Name: "a1", Role: devcluster.Agent, State: devcluster.Dead}}}
	p := devProcedures(here+"/c", state)
	cut := devProcedures(here+"/c", &devcluster.Status{Nodes: state.Nodes[:1], Partitioned: true})
	unknown := devProcedures(here+"/c", nil)
	for what, c := range map[string]struct{ got, want string }{
		"running":           {p.Look("s1", "server"), "tail -n 100 c/s1.log"},
		"paused":            {p.Look("s2", "server"), "dev resume s2 --dir c"},
		"dead":              {p.Look("s3", "server"), "dev start s3 --dir c"},
		"a dead agent":      {p.Look("a1", "agent"), "dev start a1 --dir c"},
		"no such node":      {p.Look("s9", "server"), "dev status --dir c"},
		"cut off":           {cut.Look("s1", "server"), "dev heal --dir c"},
		"not known":         {unknown.Look("s1", "server"), "dev status --dir c"},
		"the others":        {p.Start, "dev start s3 --dir c"},
		"the others, too":   {p.Start, "dev resume s2 --dir c; "},
		"all run, and cut":  {cut.Start, "dev heal --dir c"},
		"who is not known":  {unknown.Start, "dev start NODE --dir c"},
		"recover":           {p.Recover, "--inspect --data-dir c/s1 --data-dir c/s2 --data-dir c/s3"},
		"a new server":      {p.JoinAnew("s3"), "dev start --wipe s3 --dir c"},
		"in its network":    {p.From("s1", "ping 10.0.0.1"), "dev exec s1 --dir c -- ping 10.0.0.1"},
		"the errors":        {p.Errors("s1"), "grep level=ERROR c/s1.log"},
		"all, where it ran": {p.Any, "dev status --dir c"},
	} {
		if !strings.Contains(c.got, c.want) || strings.Contains(c.got, "systemctl") || strings.Contains(c.got, "journalctl") {
			t.Errorf("%s: %q, want %q", what, c.got, c.want)
		}
	}
	e := newExamination(p)
	e.Add(clusterstatus.Warning{On: "s1", Mend: p.Errors("s1"), Text: "x"})
	if e.Findings[0].On != "" {
		t.Errorf("a dev command is to be run on %s", e.Findings[0].On)
	}
}
