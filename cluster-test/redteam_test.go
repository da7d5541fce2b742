package clustertest

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

// A red team has an agent's machine, a monitoring account that may read nodes/proxy, and a token
// for agents. Each gets the access that docs/security.md grants, and nothing beyond.
func TestRedTeamOfAgents(t *testing.T) {
	t.Parallel()
	images, err := testRegistry()
	if err != nil {
		t.Fatal(err)
	}
	c := Start(t, Options{Servers: 1, Agents: 1, Registry: images})
	s := NewSpace(t, c)
	Eventually(t, deadline, "a whole cluster", c.Healthy)
	s.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  nodeName: a1
  containers: [{name: hello, image: "barque.local/hello:1"}]
---
apiVersion: v1
kind: Secret
metadata: {name: crown}
stringData: {jewel: koh-i-noor}
`)
	s.WaitReady("web")
	s.Run("an agent moves its Node to an API server", agentMovesItsNode)
	s.Run("a Node stands at an API server", nodeAtAnAPIServer)
	s.Run("a reader of nodes opens streams", readerOpensStreams)
	s.Run("the certificate for kubelets reads the API", kubeletCertificateAtTheAPI)
	s.Run("a token of agents is for strangers", strangersCertificates)
	s.Run("tokens for ten years", longTokens)
	s.Run("an agent reads as the gateway", agentAsGateway)
}

// agentMovesItsNode: with an agent's own certificate.
func agentMovesItsNode(s *Space) {
	dir := filepath.Join(s.DataDir("a1"), "pki")
	config := s.admin()
	config.CertData, config.KeyData = read(s, filepath.Join(dir, "node-client.crt")),
		read(s, filepath.Join(dir, "node.key"))
	agent, err := kubernetes.NewForConfig(config)
	if err != nil {
		s.Fatal(err)
	}
	server := s.InternalIP("s1")
	const ofService = "192.0.2.7"
	s.giveAddress("balanced", ofService)
	for address, want := range map[string]string{server: `"s1"`, "127.0.0.1": "cannot reach", "::1": "cannot reach",
		"169.254.169.254": "cannot reach", "10.43.0.1": "services", ofService: "/balanced"} {
		patch := fmt.Sprintf(
			`{"status":{"addresses":[{"type":"InternalIP","address":%q}],"daemonEndpoints":{"kubeletEndpoint":{"Port":6443}}}}`, address)
		_, err := agent.CoreV1().Nodes().PatchStatus(s.Context(), "a1", []byte(patch))
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
			s.Errorf("the address %s: %v", address, err)
		}
	}
	if is := s.InternalIP("a1"); is == server {
		s.Error("the Node of a1 is at the server's address")
	}
}

// giveAddress makes a Service that gets an address of a pool.
func (s *Space) giveAddress(name, address string) {
	s.Helper()
	s.Apply(fmt.Sprintf(`apiVersion: edge.barque.io/v1
kind: AddressPool
metadata: {name: %[1]s}
spec: {addresses: [%[2]s/32]}
---
apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec: {type: LoadBalancer, ports: [{port: 8081}]}
`, name, address))
	s.Cleanup(func() { s.KubectlResult(context.Background(), "", "delete", "addresspool", name) })
	s.K("wait", "--for=jsonpath={.status.loadBalancer.ingress[0].ip}="+address, "service/"+name, "--timeout=1m")
}

// nodeAtAnAPIServer: should a Node have such an address all the same, the API server is not called
// as its kubelet.
func nodeAtAnAPIServer(s *Space) {
	reader := s.readerOfNodes()
	for name, labels := range map[string]map[string]string{"rogue-foreign": nil,
		"rogue-member": {"barque.io/member": ""}} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		if _, err := s.Client.CoreV1().Nodes().Create(s.Context(), node, metav1.CreateOptions{}); err != nil {
			s.Fatal(err)
		}
		s.Cleanup(func() {
			if err := s.Client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				s.Error(err)
			}
		})
		for _, port := range []int{6443, 10250} { // of the API, and of another node's kubelet
			patch := fmt.Sprintf(
				`{"status":{"addresses":[{"type":"InternalIP","address":%q}],"daemonEndpoints":{"kubeletEndpoint":{"Port":%d}}}}`, s.InternalIP("s1"), port)
			if _, err := s.Client.CoreV1().Nodes().Patch(s.Context(), name, types.StrategicMergePatchType,
				[]byte(patch), metav1.PatchOptions{}, "status"); err != nil {
				s.Fatal(err)
			}
			for _, path := range []string{"api/v1/namespaces/" + s.Namespace + "/secrets/crown", "pods"} {
				code, body := s.call(reader, http.MethodGet, "/api/v1/nodes/"+name+"/proxy/"+path, "")
				if code == http.StatusOK ||
					strings.Contains(body, base64.StdEncoding.EncodeToString([]byte("koh-i-noor"))) ||
					!strings.Contains(body, "answers at the address of node") {
					s.Errorf("%s, port %d, %s: %d %s", name, port, path, code, body)
				}
			}
		}
	}
}

// readerOpensStreams: with the verb get of nodes/proxy, by each server's proxy and at the kubelet.
func readerOpensStreams(s *Space) {
	reader := s.readerOfNodes()
	if code, body := s.call(reader, http.MethodGet, "/api/v1/nodes/a1/proxy/pods", ""); code != http.StatusOK {
		s.Fatalf("the reader may not even read: %d %s", code, body)
	}
	atKubelet := rest.CopyConfig(reader)
	atKubelet.Host = "https://" + s.InternalIP("a1") + ":10250"
	streams := map[string]string{
		"/portForward/" + s.Namespace + "/web?port=8080":                                "SPDY/3.1",
		"/exec/" + s.Namespace + "/web/hello?command=id&output=1":                       "websocket",
		"/attach/" + s.Namespace + "/web/hello?output=1":                                "SPDY/3.1",
		"/pods/../exec/" + s.Namespace + "/web/hello?command=id&output=1":               "websocket",
		"/%65xec/" + s.Namespace + "/web/hello?command=id&output=1":                     "websocket",
		"/run/" + s.Namespace + "/web/hello?cmd=id":                                     "",
		"/containerLogs/../portForward/" + s.Namespace + "/web?port=8080&protocol=SPDY": "SPDY/3.1",
	}
	for path, protocol := range streams {
		if code, body := s.call(reader, http.MethodGet, "/api/v1/nodes/a1/proxy"+path,
			protocol); code == http.StatusSwitchingProtocols || code == http.StatusOK || code >= 500 {
			s.Errorf("nodes/proxy%s: %d %s", path, code, body)
		}
		if code, body := s.call(atKubelet, http.MethodGet, path, protocol); code == http.StatusSwitchingProtocols ||
			code == http.StatusOK || code >= 500 {
			s.Errorf("kubelet%s: %d %s", path, code, body)
		}
	}
	// With the verb create the same request opens the stream: the refusal above was of a
	// real request.
	role := s.Namespace + "-nodes"
	if _, err := s.Client.RbacV1().ClusterRoles().Patch(s.Context(), role, types.JSONPatchType,
		[]byte(`[{"op":"add","path":"/rules/0/verbs/-","value":"create"}]`), metav1.PatchOptions{}); err != nil {
		s.Fatal(err)
	}
	Eventually(s, deadline, "the stream with the verb create", func(context.Context) error {
		code, body := s.call(reader, http.MethodGet, "/api/v1/nodes/a1/proxy/portForward/"+s.Namespace+"/web?port=8080",
			"SPDY/3.1")
		if code != http.StatusSwitchingProtocols {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
}

// kubeletCertificateAtTheAPI: the certificate that servers show to kubelets opens these and reads
// no Secret. The test makes one with the CA's key.
func kubeletCertificateAtTheAPI(s *Space) {
	dir := filepath.Join(s.DataDir("s1"), "pki")
	ca, err := pki.ParseAuthority(read(s, filepath.Join(dir, "ca.crt")), read(s, filepath.Join(dir, "ca.key")))
	if err != nil {
		s.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.Fatal(err)
	}
	config := s.admin()
	request := pki.Request{CommonName: "barque:kubelet-client", Organization: []string{"barque:kubelet-clients"},
		Usage: pki.Client, Lifetime: time.Hour}
	if config.CertData, err = ca.Issue(request, key.Public(), time.Now()); err != nil {
		s.Fatal(err)
	}
	if config.KeyData, err = pki.MarshalKey(key); err != nil {
		s.Fatal(err)
	}
	for path, want := range map[string]int{
		"/api/v1/namespaces/" + s.Namespace + "/secrets/crown": http.StatusForbidden,
		"/api/v1/secrets": http.StatusForbidden,
		"/api/v1/namespaces/" + s.Namespace + "/configmaps": http.StatusForbidden, "/barque/v1/snapshot": 0,
		"/api/v1/nodes": http.StatusOK,
	} {
		if code, body := s.call(config, http.MethodGet, path, ""); want != 0 && code != want ||
			want == 0 && code < 400 {
			s.Errorf("%s: %d %s", path, code, body)
		}
	}
	kubelet := rest.CopyConfig(config)
	kubelet.Host = "https://" + s.InternalIP("a1") + ":10250"
	if code, body := s.call(kubelet, http.MethodGet, "/pods", ""); code != http.StatusOK ||
		!strings.Contains(body, `"web"`) {
		s.Errorf("the kubelet: %d %s", code, body)
	}
}

// strangersCertificates: a token of agents gives a certificate for one's own machine only.
func strangersCertificates(s *Space) {
	token, err := pki.ParseToken(strings.TrimSpace(s.Barque(s, "token", "create", "--role=agent")))
	if err != nil {
		s.Fatal(err)
	}
	host := s.InternalIP("s1") + ":6443"
	ca, err := join.FetchCA(s.Context(), host, token)
	if err != nil {
		s.Fatal(err)
	}
	client, err := join.NewClient(host, ca, nil, time.Now)
	if err != nil {
		s.Fatal(err)
	}
	defer client.Close()
	key, err := pki.GenerateKey()
	if err != nil {
		s.Fatal(err)
	}
	csr, err := pki.SigningRequest(key)
	if err != nil {
		s.Fatal(err)
	}
	for what, c := range map[string][3]string{
		"a Service":                 {"metrics.audit.svc", "10.77.0.9", "is the name of a Service"},
		"a Service in full":         {"metrics.audit.svc.cluster.local", "10.77.0.9", "DNS domain"},
		"the API":                   {"kubernetes", "10.77.0.9", "is a name of the API"},
		"the API's Service":         {"kubernetes.default", "10.77.0.9", "is a name of the API"},
		"localhost":                 {"localhost", "10.77.0.9", "name for itself"},
		"a server":                  {"s1", "10.77.0.9", "s1"},
		"a stranger's address":      {"m1", "8.8.8.8", "not of a private network"},
		"a server's address":        {"m1", s.InternalIP("s1"), "is that of server"},
		"the API's cluster address": {"m1", "10.43.0.1", "among the addresses of services"},
		"a pod's address":           {"m1", "10.42.0.9", "among the addresses of pods"},
	} {
		_, err := client.Agent(s.Context(),
			join.Request{Token: token.String(), Name: c[0], Address: c[1], Clock: time.Now(), CSR: csr,
				GossipKey: make([]byte, ed25519.PublicKeySize), Version: version.Version})
		var refused *join.RefusedError
		if !errors.As(err, &refused) || !strings.Contains(refused.Reason, c[2]) {
			s.Errorf("%s: %v", what, err)
		}
	}
}

// longTokens: the owner of an account gets a day, and so does a pod.
func longTokens(s *Space) {
	token, err := s.Client.CoreV1().ServiceAccounts(s.Namespace).CreateToken(s.Context(), "default",
		&authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](10 * 365 * 24 * 3600)}},
		metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	if left := time.Until(token.Status.ExpirationTimestamp.Time); left > 24*time.Hour || left < 23*time.Hour {
		s.Errorf("a token lasts for %s", left)
	}
	pod, err := s.Client.CoreV1().Pods(s.Namespace).Get(s.Context(), "web", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	ofPod, err := s.Client.CoreV1().ServiceAccounts(s.Namespace).CreateToken(s.Context(), "default",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: ptr.To[int64](3607),
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name,
				UID: pod.UID}}}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(ofPod.Status.Token, ".")[1])
	if err != nil {
		s.Fatal(err)
	}
	var claims struct{ Exp, Iat int64 }
	if err := json.Unmarshal(payload, &claims); err != nil {
		s.Fatal(err)
	}
	if life := time.Duration(claims.Exp-claims.Iat) * time.Second; life != 24*time.Hour {
		s.Errorf("a pod's token lasts for %s", life)
	}
}

// admin is how to reach the cluster, without a credential.
func (s *Space) admin() *rest.Config {
	s.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
	if err != nil {
		s.Fatal(err)
	}
	return rest.AnonymousClientConfig(config)
}

// readerOfNodes is an account that may get nodes/proxy, as monitoring may.
func (s *Space) readerOfNodes() *rest.Config {
	s.Helper()
	name, ctx := s.Namespace+"-nodes", s.Context()
	_, err := s.Client.RbacV1().ClusterRoles().Create(ctx,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name},
			Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{""}, Resources: []string{"nodes/proxy"}, Verbs: []string{"get"}}}},
		metav1.CreateOptions{})
	if err == nil {
		_, err = s.Client.RbacV1().ClusterRoleBindings().Create(ctx,
			&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
				RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
				Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "default", Namespace: s.Namespace}}},
			metav1.CreateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		s.Fatal(err)
	}
	token, err := s.Client.CoreV1().ServiceAccounts(s.Namespace).CreateToken(ctx, "default",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	config := s.admin()
	config.BearerToken = token.Status.Token
	Eventually(s, deadline, "the reader's rights", func(context.Context) error {
		if code, body := s.call(config, http.MethodGet, "/api/v1/nodes/s1/proxy/healthz", ""); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	return config
}

// call makes a request as it stands, over HTTP/1.1; no client cleans its path.
func (s *Space) call(config *rest.Config, method, path, protocol string) (int, string) {
	s.Helper()
	code, body, err := s.try(config, attempt{method: method, path: path, protocol: protocol})
	if err != nil {
		s.Fatalf("%s %s: %v", method, path, err)
	}
	return code, body
}

// attempt is a request that its user may have no right to.
type attempt struct {
	method, path, body string
	protocol           string   // of an upgrade; empty: none
	headers            []string // names and values
}

func (a *attempt) String() string {
	return strings.TrimSpace(strings.Join([]string{a.method, a.path, a.protocol, strings.Join(a.headers, " ")}, " "))
}

// try makes a request as call does.
func (s *Space) try(config *rest.Config, a attempt) (int, string, error) {
	s.Helper()
	config = rest.CopyConfig(config)
	config.NextProtos = []string{"http/1.1"}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return 0, "", err
	}
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, a.method, config.Host+a.path, strings.NewReader(a.body))
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("Content-Type", "application/json")
	if a.protocol != "" {
		request.Header.Set("Connection", "Upgrade")
		request.Header.Set("Upgrade", a.protocol)
		request.Header.Set("Sec-WebSocket-Version", "13")
		request.Header.Set("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
		request.Header.Set("Sec-WebSocket-Protocol", "v5.channel.k8s.io")
		request.Header.Set("X-Stream-Protocol-Version", "portforward.k8s.io")
	}
	for i := 0; i < len(a.headers); i += 2 {
		request.Header.Set(a.headers[i], a.headers[i+1])
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusSwitchingProtocols {
		return response.StatusCode, "", nil
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	return response.StatusCode, string(body), err
}

// InternalIP is the address of a node.
func (s *Space) InternalIP(node string) string {
	s.Helper()
	n, err := s.Client.CoreV1().Nodes().Get(s.Context(), node, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return a.Address
		}
	}
	s.Fatalf("node %s has no address", node)
	return ""
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
