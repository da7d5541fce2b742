package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/internal/unpack"
)

// TestDoctorAsksWhoAnswers: with --server no request goes to the kubeconfig's server, which may be
// dead, and would cost each request its timeout.
func TestDoctorAsksWhoAnswers(t *testing.T) {
	var asked []string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/barque/v1/status":
			io.WriteString(w,
				`{"cluster": "c", "from": "s1", "nodes": [{"node": "s1", "role": "server", "state": "alive"}]}`)
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
	text := "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: c, cluster: {server: 'https://" +
		dead.Addr().String() +
		"', insecure-skip-tls-verify: true}}]\nusers: [{name: u, user: {}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// Requests to the dead one get no answer, and are seen here.
	touched := make(chan struct{})
	go func() {
		defer close(touched)
		if conn, err := dead.Accept(); err == nil {
			t.Error("the kubeconfig's server was asked")
			conn.Close()
		}
	}()
	out, err := run(t, "cluster", "doctor", "--kubeconfig", kubeconfig, "--server",
		strings.TrimPrefix(server.URL, "https://"), "--data-dir", dir, "--output", archive, "--format", "json",
		"--timeout", "1m")
	dead.Close()
	<-touched
	if code := exitCode(err); code != exitcode.NoQuorum { // the store of s1 has sent no report
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
