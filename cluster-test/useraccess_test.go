package clustertest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/needs"
)

// madeUser is a user of `barque user add`.
type madeUser struct {
	kubeconfig string
	cert       *tls.Certificate
}

func (b *building) madeUser(name, group string, flags ...string) madeUser {
	b.Helper()
	made := madeUser{kubeconfig: filepath.Join(b.t.TempDir(), "kubeconfig")}
	out := b.Barque(b, append([]string{"user", "add", name, "--group", group}, flags...)...)
	if err := os.WriteFile(made.kubeconfig, []byte(out), 0o600); err != nil {
		b.Fatal(err)
	}
	config := made.config(b)
	cert, err := tls.X509KeyPair(config.CertData, config.KeyData)
	if err != nil {
		b.Fatal(err)
	}
	made.cert = &cert
	return made
}

func (m *madeUser) config(b *building) *rest.Config {
	b.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", m.kubeconfig)
	if err != nil {
		b.Fatal(err)
	}
	return config
}

// TestARevokedAdministrator: an administrator has made herself a certificate of barque:admins
// without a trace. When it is revoked she is refused at every door, and her running requests end.
func TestARevokedAdministrator(t *testing.T) {
	needs.AllTests(t)
	images, err := testRegistry()
	if err != nil {
		t.Fatal(err)
	}
	c := Start(t, Options{Servers: 1, Agents: 1, Registry: images})
	b := newBuilding(t, c)
	first := b.madeUser("mallory", "barque:admins")
	hidden := b.madeUser("mallory", "barque:admins", "--kubeconfig", first.kubeconfig, "--ttl", "100h")
	b.Kubectl(t, "--kubeconfig", first.kubeconfig, "delete", "certificatesigningrequests", "-l", "barque.io/user")
	b.madeUser("helper", "barque:admins", "--kubeconfig", hidden.kubeconfig)
	b.K("run", "box", "--image=busybox:1.36", "--overrides", `{"spec":{"nodeName":"a1"}}`, "--command", "--", "sleep",
		"1000000")
	b.WaitReady("box")
	attempts := b.attempts()
	for what, attempt := range attempts {
		if status, err := attempt(hidden.cert); status == http.StatusUnauthorized || err != nil {
			t.Fatalf("%s, before: %d, %v", what, status, err)
		}
	}
	watch := b.watch(hidden.cert)
	streams := map[string]chan error{"through the API": b.cat(hidden.config(b), ""),
		"at the kubelet": b.cat(hidden.config(b), b.at["a1"]+":10250")}

	if r := b.BarqueResult(t.Context(), "user", "revoke", "mallory"); r.Error == nil || !contains(r.Err, "--force") {
		t.Fatalf("a name that is not listed: %s%s", r.Out, r.Err)
	}
	if r := b.BarqueResult(t.Context(), "user", "revoke", "mallory", "--force", "--kubeconfig", hidden.kubeconfig,
		"--why", "she may"); r.Error != nil || !contains(r.Err, "user revoke helper") {
		t.Fatalf("%s%s", r.Out, r.Err)
	}
	if !watch.ended(t) {
		t.Error("a watch goes on")
	}
	for what, ended := range streams {
		await.Value(t, "the end of a command "+what, ended) // SPDY's client reports no error for it
	}
	for what, attempt := range attempts {
		for _, cert := range []*tls.Certificate{first.cert, hidden.cert} {
			Eventually(t, deadline, what, func(context.Context) error {
				status, err := attempt(cert)
				if err == nil && status != http.StatusUnauthorized {
					err = fmt.Errorf("status %d", status)
				}
				return err
			})
		}
	}
	again := b.madeUser("mallory", "barque:admins")
	if answer, err := doors["API: Secrets"](b, again.cert); answer != yes || err != nil {
		t.Errorf("with her next certificate: %s, %v", answer, err)
	}
	list := b.Barque(t, "user", "ls")
	if !strings.Contains(list, "mallory") || strings.Contains(list, "revoked") {
		t.Errorf("the list is %s", list)
	}
	b.Barque(t, "user", "revoke", "--serial", fmt.Sprintf("%x", again.cert.Leaf.SerialNumber))
	Eventually(t, deadline, "the list with a revoked user", func(context.Context) error {
		if list := b.Barque(t, "user", "ls"); !contains(list, "mallory", "revoked", "helper", "valid") {
			return errors.New(list)
		}
		return nil
	})
}

// attempts are requests to all that administrators have.
func (b *building) attempts() map[string]func(*tls.Certificate) (int, error) {
	at := func(host, method, path string, headers ...string) func(*tls.Certificate) (int, error) {
		return func(cert *tls.Certificate) (int, error) {
			r, err := http.NewRequestWithContext(b.Context(), method, "https://"+host+path, nil)
			if err != nil {
				return 0, err
			}
			for i := 0; i < len(headers); i += 2 {
				r.Header.Set(headers[i], headers[i+1])
			}
			response, err := b.client(cert).Do(r)
			if err != nil {
				return 0, err
			}
			response.Body.Close()
			return response.StatusCode, nil
		}
	}
	api, kubelet := b.at["s1"]+":6443", b.at["a1"]+":10250"
	return map[string]func(*tls.Certificate) (int, error){
		"Secrets": at(api, http.MethodGet, "/api/v1/secrets"),
		"as another user": at(api, http.MethodGet, "/api/v1/secrets", "Impersonate-User", "barque:admin",
			"Impersonate-Group", "system:masters"),
		"by a proxy's headers": at(api, http.MethodGet, "/api/v1/secrets", "X-Remote-User", "barque:admin",
			"X-Remote-Group", "system:masters"),
		"a kubelet, by the API": at(api, http.MethodGet, "/api/v1/nodes/a1/proxy/pods"),
		"join tokens":           at(api, http.MethodGet, "/barque/v1/tokens"),
		"revocations":           at(api, http.MethodGet, "/barque/v1/revocations"),
		"a snapshot":            at(api, http.MethodGet, "/barque/v1/snapshots"),
		"health":                at(api, http.MethodGet, "/readyz"),
		"metrics":               at(api, http.MethodGet, "/metrics"),
		"the agent's kubelet":   at(kubelet, http.MethodGet, "/pods"),
		"the server's kubelet":  at(b.at["s1"]+":10250", http.MethodGet, "/pods"),
	}
}

// cat runs a command in the pod box that has no end, and returns when it is under way: through the
// API, or at a kubelet.
func (b *building) cat(config *rest.Config, kubelet string) chan error {
	b.Helper()
	config = rest.CopyConfig(config)
	location := b.Client.CoreV1().RESTClient().Post().Namespace(b.Namespace).Resource("pods").Name("box").SubResource(
		"exec").
		VersionedParams(&corev1.PodExecOptions{Command: []string{"cat"}, Stdin: true, Stdout: true},
			scheme.ParameterCodec).URL()
	if kubelet != "" {
		location = &url.URL{Scheme: "https", Host: kubelet, Path: "/exec/" + b.Namespace + "/box/box",
			RawQuery: "command=cat&input=1&output=1"}
		config.TLSClientConfig.CAData, config.TLSClientConfig.Insecure = nil, true
	}
	executor, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, location)
	if err != nil {
		b.Fatal(err)
	}
	stdin, input := io.Pipe()
	output, stdout := io.Pipe()
	ended := make(chan error, 1)
	go func() { // ends with the stream, or with the test
		err := executor.StreamWithContext(b.Context(), remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout})
		stdout.CloseWithError(errors.Join(io.EOF, err))
		ended <- err
	}()
	b.t.Cleanup(func() { input.Close() })
	go func() { _, _ = io.WriteString(input, "x") }()
	if _, err := io.ReadFull(output, make([]byte, 1)); err != nil {
		b.Fatalf("the command does not begin: %v", err)
	}
	return ended
}
