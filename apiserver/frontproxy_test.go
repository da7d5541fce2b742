package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/barque/barque/apiserver/authorizers"
	"github.com/barque/barque/apiserver/bootstrap"
	"github.com/barque/barque/apiserver/frontproxy"
	"github.com/barque/barque/apiserver/logins"
	"github.com/barque/barque/apiserver/logins/logintest"
)

// withFrontProxy configures the proxy "auth" with certificates of a CA.
func withFrontProxy(t *testing.T, ca *testCA) func(*Config) {
	t.Helper()
	return withFrontProxyOf(t, logintest.Write(t, t.TempDir()+"/proxy-ca.crt", string(ca.pem)))
}

// withFrontProxyOf is withFrontProxy with the CAs of a file.
func withFrontProxyOf(t *testing.T, path string) func(*Config) {
	t.Helper()
	return withLogins(t, func(o *logins.Options, _ *authorizers.Options) {
		o.Proxy = frontproxy.Options{CAFile: path, AllowedNames: []string{"auth"},
			UserHeaders: []string{"X-My-User", "X-Remote-User"},
			UIDHeaders:  []string{"X-Remote-Uid"}, GroupHeaders: []string{"X-My-Group", "X-Remote-Group"},
			ExtraPrefixes: []string{"X-Remote-Extra-"}}
	})
}

// showing returns a client that shows a certificate, independent of the server's request for one,
// and headers.
func (c *cluster) showing(t *testing.T, cert *tls.Certificate, headers ...string) kubernetes.Interface {
	t.Helper()
	return c.over(t,
		&tls.Config{
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }},
		headers...)
}

// over returns a client with these settings of TLS and headers.
func (c *cluster) over(t *testing.T, config *tls.Config, headers ...string) kubernetes.Interface {
	t.Helper()
	config.RootCAs = x509.NewCertPool()
	config.RootCAs.AddCert(c.ca.cert)
	transport := &http.Transport{TLSClientConfig: config}
	t.Cleanup(transport.CloseIdleConnections)
	return kubernetes.NewForConfigOrDie(
		&restclient.Config{Host: c.host, QPS: -1,
			Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
				r = r.Clone(r.Context())
				for i := 0; i < len(headers); i += 2 {
					r.Header.Add(headers[i], headers[i+1])
				}
				return transport.RoundTrip(r)
			})})
}

// TestFrontProxy: the headers of the configured proxy name the user, and no other client's headers
// count.
func TestFrontProxy(t *testing.T) {
	proxies, stranger := newNamedCA(t, "proxies"), newNamedCA(t, "proxies")
	c := startCluster(t, withFrontProxy(t, proxies)).lead(t)
	must(
		c.admin.CoreV1().ServiceAccounts("kube-system").Create(t.Context(),
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{}))(t)
	auth, server := pkix.Name{CommonName: "auth"}, pkix.Name{CommonName: ProxyClientName}
	user, dev := []string{"X-Remote-User", "ann"}, []string{"X-My-User", "ann", "X-My-Group", "dev"}
	for name, test := range map[string]struct {
		ca      *testCA
		subject pkix.Name
		headers []string
		is      string // "" is no user
	}{
		"the proxy":                          {proxies, auth, user, "ann"},
		"the proxy, with headers of its own": {proxies, auth, dev, "ann"},
		"the proxy, for nobody":              {proxies, auth, nil, ""},
		"the proxy, for a group":             {proxies, auth, []string{"X-Remote-Group", "system:masters"}, ""},
		"the proxy, for an administrator's group": {proxies, auth, append(user, "X-Remote-Group", "system:masters"),
			""},
		"the proxy, for Barque's administrators": {proxies, auth, append(user, "X-Remote-Group", "barque:admins"),
			""},
		"the proxy, for a node": {proxies, auth,
			[]string{"X-Remote-User", "system:node:n1", "X-Remote-Group", "system:nodes"}, ""},
		"the proxy, for a controller": {proxies, auth,
			[]string{"X-Remote-User", "system:serviceaccount:kube-system:job-controller"}, ""},
		"the proxy, for a server": {proxies, auth, []string{"X-Remote-User", "barque:server-client"},
			""},
		"another name of the CA": {proxies, pkix.Name{CommonName: "eve"}, user, ""},
		"another name of the CA, an administrator's": {proxies,
			pkix.Name{CommonName: "eve", Organization: []string{"system:masters"}}, nil, ""},
		"the name of servers, of the CA of proxies":  {proxies, server, user, ""},
		"the name of the proxy, of another CA":       {stranger, auth, user, ""},
		"the name of the proxy, of the cluster's CA": {c.ca, auth, user, "auth"},
		"a user of the cluster's CA":                 {c.ca, subject("eve"), append(dev, user...), "eve"},
		"a server, with the proxy's headers":         {c.ca, server, dev, ProxyClientName},
		"a server, as before":                        {c.ca, server, user, "ann"},
	} {
		who, err := whoAmI(t, c.showing(t, test.ca.issue(t, test.subject), test.headers...))
		switch {
		case test.is == "" && !apierrors.IsUnauthorized(err):
			t.Errorf("%s is %+v, %v; want nobody", name, who, err)
		case test.is != "" && (err != nil || who.Username != test.is || slices.Contains(who.Groups, "system:masters")):
			t.Errorf("%s is %+v, %v; want %s", name, who, err, test.is)
		case test.is == "ann" && strings.HasSuffix(name, "of its own") &&
			!slices.Equal(who.Groups, []string{"dev", "system:authenticated"}):
			t.Errorf("%s is in %q", name, who.Groups)
		}
	}
	// Credentials that the proxy passes on do not replace the user that it may not name.
	account := must(
		c.admin.CoreV1().ServiceAccounts("kube-system").CreateToken(t.Context(), "robot",
			&authenticationv1.TokenRequest{}, metav1.CreateOptions{}))
	bearer := "Bearer " + account(t).Status.Token
	for named, want := range map[string]string{"ann": "ann", "system:admin": "",
		"": "system:serviceaccount:kube-system:robot"} {
		who, err := whoAmI(t, c.showing(t, proxies.issue(t, auth), "X-Remote-User", named, "Authorization", bearer))
		if want == "" && !apierrors.IsUnauthorized(err) || want != "" && (err != nil || who.Username != want) {
			t.Errorf("the proxy for %q, with a token: %+v, %v; want %q", named, who, err, want)
		}
	}

	// Many clients show a certificate only if the server names its CA.
	choosing := &tls.Config{Certificates: []tls.Certificate{*proxies.issue(t, auth)}}
	if who, err := whoAmI(t, c.over(t, choosing, user...)); err != nil || who.Username != "ann" {
		t.Errorf("with a client that chooses: %+v, %v", who, err)
	}

	// Extension API servers accept headers from the names in the ConfigMap: servers alone.
	var published *corev1.ConfigMap
	await(t, "the leader publishes", func(ctx context.Context) (err error, ok bool) {
		published, err = c.admin.CoreV1().ConfigMaps("kube-system").Get(ctx, bootstrap.ExtensionAuthentication,
			metav1.GetOptions{})
		return err, err == nil
	})
	for key, want := range map[string]string{
		"client-ca-file": string(c.ca.pem), "requestheader-client-ca-file": string(c.ca.pem),
		"requestheader-allowed-names":    `["` + ProxyClientName + `"]`,
		"requestheader-username-headers": `["X-Remote-User"]`, "requestheader-group-headers": `["X-Remote-Group"]`,
	} {
		if got := published.Data[key]; got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
}

// TestAProxysWatchEnds: a proxy's open requests end when its CA is no longer in the file. Other
// clients' watches go on.
func TestAProxysWatchEnds(t *testing.T) {
	proxies, next := newNamedCA(t, "proxies"), newNamedCA(t, "proxies")
	path := logintest.Write(t, t.TempDir()+"/proxy-ca.crt", string(proxies.pem))
	c := startCluster(t, withFrontProxyOf(t, path)).lead(t)
	must(
		c.admin.RbacV1().ClusterRoles().Create(t.Context(),
			&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "watch"},
				Rules: []rbacv1.PolicyRule{
					{Verbs: []string{"watch"}, APIGroups: []string{""}, Resources: []string{"configmaps"}}}},
			metav1.CreateOptions{}))(t)
	must(
		c.admin.RbacV1().ClusterRoleBindings().Create(t.Context(),
			&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "ann"},
				RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "watch"},
				Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "ann"}}},
			metav1.CreateOptions{}))(t)
	proxied := c.showing(t, proxies.issue(t, pkix.Name{CommonName: "auth"}), "X-Remote-User", "ann")
	var watched watch.Interface
	await(t, "ann may watch", func(ctx context.Context) (err error, ok bool) {
		watched, err = proxied.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{})
		return err, err == nil
	})
	defer watched.Stop()
	others := must(c.admin.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{}))(t)
	defer others.Stop()

	logintest.Write(t, path, string(next.pem))
	ended := time.After(hangs)
	for open := true; open; {
		select {
		case _, open = <-watched.ResultChan():
		case <-ended:
			t.Fatal("the watch goes on")
		}
	}
	must(
		c.admin.CoreV1().ConfigMaps("default").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "after"}}, metav1.CreateOptions{}))(t)
	for {
		event, open := <-others.ResultChan()
		if !open {
			t.Fatal("another client's watch has ended")
		}
		if o, is := event.Object.(*corev1.ConfigMap); is && o.Name == "after" {
			return
		}
	}
}
