package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"github.com/barque/barque/apiserver/bootstrap"
)

var starsOf = schema.GroupVersionResource{Group: "stars.example.com", Version: "v1", Resource: "stars"}

// extension is an extension API server: it takes the user from the headers of requests that come
// with the certificate of a server, and answers with the user's name.
func extension(t *testing.T, ca *testCA) *httptest.Server {
	t.Helper()
	reply := func(w http.ResponseWriter, o any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(o)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/apis/stars.example.com/v1", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "stars.example.com/v1",
			APIResources: []metav1.APIResource{
				{Name: "stars", SingularName: "star", Kind: "Star", Verbs: metav1.Verbs{"get"}}},
		})
	})
	mux.HandleFunc("/apis/stars.example.com/v1/stars/polaris", func(w http.ResponseWriter, r *http.Request) {
		reply(w, map[string]any{
			"apiVersion": "stars.example.com/v1", "kind": "Star", "metadata": map[string]any{"name": "polaris"},
			"user": r.Header.Get("X-Remote-User"), "groups": r.Header["X-Remote-Group"], "header": r.Header,
		})
	})
	mux.HandleFunc("/openapi/v2", func(w http.ResponseWriter, _ *http.Request) {
		reply(w,
			map[string]any{"swagger": "2.0", "info": map[string]any{"title": "stars", "version": "1"},
				"paths": map[string]any{
					"/apis/stars.example.com/v1/stars": map[string]any{
						"get": map[string]any{"description": "lists stars"}},
				}})
	})
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) == 0 || r.TLS.PeerCertificates[0].Subject.CommonName != ProxyClientName {
			http.Error(w, "this request does not come from a server", http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	s.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: roots}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// withProxyClient gives a server the certificate for extension API servers.
func withProxyClient(t *testing.T, ca *testCA) func(*Config) {
	t.Helper()
	cert := ca.issue(t, pkix.Name{CommonName: ProxyClientName})
	der, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := CertificateFiles{CertFile: filepath.Join(dir, "crt"), KeyFile: filepath.Join(dir, "key")}
	for path, block := range map[string]*pem.Block{
		files.CertFile: {Type: "CERTIFICATE", Bytes: cert.Certificate[0]},
		files.KeyFile:  {Type: "PRIVATE KEY", Bytes: der},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return func(cfg *Config) { cfg.ProxyClient = files }
}

func TestAggregation(t *testing.T) {
	ca := newCA(t)
	c := startCluster(t, withProxyClient(t, ca), withFrontProxy(t, newCA(t)))
	if err := c.ensure(t.Context(), c.client); err != nil {
		t.Fatal(err)
	}
	c.leads.Store(true) // only the leader writes its findings
	services := aggregatorclient.NewForConfigOrDie(c.ca.client(t, c.host, admin())).ApiregistrationV1().APIServices()
	available := func(name string, status apiregistrationv1.ConditionStatus) {
		t.Helper()
		await(t, name+" is available: "+string(status), func(ctx context.Context) (error, bool) {
			s, err := services.Get(ctx, name, metav1.GetOptions{})
			return err,
				err == nil &&
					slices.ContainsFunc(s.Status.Conditions, func(c apiregistrationv1.APIServiceCondition) bool {
						return c.Type == apiregistrationv1.Available && c.Status == status
					})
		})
	}
	available("v1.", apiregistrationv1.ConditionTrue)
	available("v1.apps", apiregistrationv1.ConditionTrue)

	backend := extension(t, ca)
	at, err := url.Parse(backend.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(at.Port(), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.admin.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "stars"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	backendPort := int32(port)
	remote := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.stars.example.com"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "stars.example.com", Version: "v1", GroupPriorityMinimum: 2000, VersionPriority: 15,
			InsecureSkipTLSVerify: true,
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "stars",
				Port: &backendPort},
		},
	}
	if _, err := services.Create(t.Context(), remote, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	available(remote.Name, apiregistrationv1.ConditionTrue)
	// An APIService that is not of this server is not removed either.
	if err := c.registration.Pass(t.Context(), c.client.Discovery().RESTClient()); err != nil {
		t.Fatal(err)
	}

	// The condition is written before the way to the extension is open: 503 for a moment.
	var star *unstructured.Unstructured
	await(t, "the extension answers", func(ctx context.Context) (err error, ok bool) {
		star, err = c.dynamic(t).Resource(starsOf).Get(ctx, "polaris", metav1.GetOptions{})
		return err, err == nil
	})
	if groups := star.Object["groups"].([]any); star.Object["user"] != "admin" ||
		!slices.Contains(groups, any("system:masters")) {
		t.Errorf("the extension was told of %v in %v", star.Object["user"], groups)
	}
	// Headers of the proxy in front of the API stay here, from any client.
	code, body := c.raw(t, "/apis/stars.example.com/v1/stars/polaris",
		http.Header{"X-My-User": {"mallory"}, "X-My-Group": {"mallory"}, "X-Remote-Extra-A": {"mallory"},
			"X-Other": {"other"}})
	if text := string(body); code != http.StatusOK || strings.Contains(text, "mallory") ||
		!strings.Contains(text, "other") {
		t.Errorf("the extension has got %d %s", code, text)
	}
	await(t, "discovery lists stars", func(context.Context) (error, bool) {
		_, lists, err := c.admin.Discovery().ServerGroupsAndResources()
		return err,
			slices.ContainsFunc(lists,
				func(l *metav1.APIResourceList) bool { return l.GroupVersion == "stars.example.com/v1" })
	})
	await(t, "the documents describe stars", func(context.Context) (error, bool) {
		_, body := c.raw(t, "/openapi/v2", nil)
		return nil, strings.Contains(string(body), "lists stars")
	})

	// The document lacks a required part of an operation; the library panics over it.
	if code, body := c.raw(t, "/openapi/v3/apis/stars.example.com/v1", nil); code != http.StatusInternalServerError ||
		!strings.Contains(string(body), "malformed") {
		t.Errorf("a malformed document: %d %s", code, body)
	}

	// Requests to a dead extension fail at once, and no other requests do.
	backend.Close()
	if _, err := c.dynamic(t).Resource(starsOf).Get(t.Context(), "polaris",
		metav1.GetOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("of a dead extension: %v", err)
	}
	if _, lists, err := c.admin.Discovery().ServerGroupsAndResources(); err != nil &&
		!discovery.IsGroupDiscoveryFailedError(err) || len(lists) < 5 {
		t.Errorf("discovery beside a dead extension: %d lists, %v", len(lists), err)
	}
	if err := services.Delete(t.Context(), remote.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "what is not registered is not found", func(ctx context.Context) (error, bool) {
		_, err := c.dynamic(t).Resource(starsOf).Get(ctx, "polaris", metav1.GetOptions{})
		return err, apierrors.IsNotFound(err)
	})
}

// A server takes the user from the headers of requests that another server passes on, and of
// no others.
func TestRequestHeaders(t *testing.T) {
	c := startCluster(t)
	if err := c.ensure(t.Context(), c.client); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		subject pkix.Name
		user    string
	}{
		"a server": {pkix.Name{CommonName: ProxyClientName}, "mary"},
		"a user":   {subject("eve"), "eve"},
	} {
		cfg := c.ca.client(t, c.host, test.subject)
		cfg.WrapTransport = func(rt http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				r = r.Clone(r.Context())
				r.Header.Set("X-Remote-User", "mary")
				r.Header.Set("X-Remote-Group", "system:masters")
				return rt.RoundTrip(r)
			})
		}
		client := kubernetes.NewForConfigOrDie(cfg)
		self, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
			&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil || self.Status.UserInfo.Username != test.user {
			t.Errorf("%s is taken for %v, %v", name, self, err)
		}
		_, err = client.CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{})
		if (err == nil) != (test.user == "mary") {
			t.Errorf("%s lists secrets: %v", name, err)
		}
	}
}

// TestTheFrontProxysCA: where it has a CA of its own, the headers of no other certificate name a
// user, and its own certificates are no client's. Extension API servers are given that CA, also
// when it is exchanged.
func TestTheFrontProxysCA(t *testing.T) {
	own, next := newNamedCA(t, "front proxy"), newNamedCA(t, "next front proxy")
	var mu sync.Mutex
	bundle, renewed := own.pem, make(chan struct{})
	c := startCluster(t, func(cfg *Config) {
		cfg.ProxyCA = func() ([]byte, error) {
			mu.Lock()
			defer mu.Unlock()
			return bundle, nil
		}
		cfg.Renewed = func() <-chan struct{} {
			mu.Lock()
			defer mu.Unlock()
			return renewed
		}
	})
	t.Cleanup(func() { // after the leader's routine
		if is := c.objects.Told(); is != nil {
			t.Errorf("a server that does not lead knows that they are told, since %v", is.Since)
		}
	})
	c.lead(t)
	server, user := pkix.Name{CommonName: ProxyClientName},
		[]string{"X-Remote-User", "mary", "X-Remote-Group", "system:masters"}
	look := func(step string, believed ...*testCA) {
		t.Helper()
		for name, test := range map[string]struct {
			ca      *testCA
			subject pkix.Name
			headers []string
			is      string // "" is no user
		}{
			"the front proxy":                            {own, server, user, "mary"},
			"the next front proxy":                       {next, server, user, "mary"},
			"the front proxy, as itself":                 {own, server, nil, ""},
			"the front proxy's name, of the clients' CA": {c.ca, server, user, ProxyClientName},
			"an administrator, of the front proxy's CA":  {own, admin(), nil, ""},
			"a client of the front proxy's CA":           {own, subject("eve"), user, ""},
		} {
			want := test.is
			if test.ca != c.ca && !slices.Contains(believed, test.ca) {
				want = ""
			}
			who, err := whoAmI(t, c.showing(t, test.ca.issue(t, test.subject), test.headers...))
			switch {
			case want == "" && !apierrors.IsUnauthorized(err):
				t.Errorf("%s, %s: %v, %v; want 401", step, name, who, err)
			case want != "" && (err != nil || who.Username != want):
				t.Errorf("%s, %s is taken for %v, %v; want %s", step, name, who, err, want)
			}
		}
		var want []byte
		for _, ca := range believed {
			want = append(want, ca.pem...)
		}
		await(t, step+": extensions are told", func(ctx context.Context) (error, bool) {
			config, err := c.admin.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx,
				bootstrap.ExtensionAuthentication, metav1.GetOptions{})
			return err,
				err == nil && config.Data["requestheader-client-ca-file"] == string(want) &&
					config.Data["client-ca-file"] == string(c.ca.pem)
		})
		await(t, step+": it is known that they are told", func(context.Context) (error, bool) {
			is := c.objects.Told()
			return nil, is != nil && is.ProxyCA == string(want)
		})
		is := c.objects.Told()
		for after, known := range map[time.Duration]bool{
			bootstrap.ReadWithin - time.Second: false, bootstrap.ReadWithin: true,
		} {
			now := is.Since.Add(after)
			if err := is.Check(want, now); (err == nil) != known || is.Check(c.ca.pem, now) == nil ||
				new(bootstrap.Told).Check(want, now) == nil {
				t.Errorf("%s, %v after: %v", step, after, err)
			}
		}
	}
	look("new", own)
	was := c.objects.Told()
	configMaps := c.admin.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	if err := configMaps.Delete(t.Context(), bootstrap.ExtensionAuthentication, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	close(renewed)
	renewed = make(chan struct{})
	mu.Unlock()
	await(t, "they are told again", func(ctx context.Context) (error, bool) {
		_, err := configMaps.Get(ctx, bootstrap.ExtensionAuthentication, metav1.GetOptions{})
		return err, err == nil && c.objects.Told() != was
	})
	for step, believed := range [][]*testCA{{own, next}, {next, own}, {next}} {
		mu.Lock()
		bundle = nil
		for _, ca := range believed {
			bundle = append(bundle, ca.pem...)
		}
		close(renewed)
		renewed = make(chan struct{})
		mu.Unlock()
		look(fmt.Sprintf("step %d", step+1), believed...)
	}
}

// APIServices follow the served groups. Those of users stay as they are.
func TestRegistration(t *testing.T) {
	c := startCluster(t)
	if err := c.ensure(t.Context(), c.client); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.LeaderRoutine(ctx, c.client) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	services := aggregatorclient.NewForConfigOrDie(c.ca.client(t, c.host, admin())).ApiregistrationV1().APIServices()
	awaitService := func(what, name string, holds func(*apiregistrationv1.APIService, error) bool) {
		t.Helper()
		await(t, what, func(ctx context.Context) (error, bool) {
			s, err := services.Get(ctx, name, metav1.GetOptions{})
			return err, holds(s, err)
		})
	}
	crd := c.define(t, boats)
	awaitService("a definition is registered", "v1.sea.example.com",
		func(s *apiregistrationv1.APIService, err error) bool {
			return err == nil && s.Spec.GroupPriorityMinimum == 1000 && s.Spec.VersionPriority == 100
		})
	if err := services.Delete(t.Context(), "v1.apps", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitService("a deleted one comes back", "v1.apps",
		func(s *apiregistrationv1.APIService, err error) bool { return err == nil && s.DeletionTimestamp == nil })
	apps, err := services.Get(t.Context(), "v1.apps", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	apps.Spec.VersionPriority = 99
	if _, err := services.Update(t.Context(), apps, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
		t.Fatal(err)
	}
	awaitService("a changed one is corrected", "v1.apps", func(s *apiregistrationv1.APIService, err error) bool {
		return err == nil && s.Spec.VersionPriority == 15
	})
	users := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v2.sea.example.com"},
		Spec: apiregistrationv1.APIServiceSpec{Group: "sea.example.com", Version: "v2", GroupPriorityMinimum: 7,
			VersionPriority: 7},
	}
	if _, err := services.Create(t.Context(), users, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.extensions(t).ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), crd.Name,
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitService("one whose definition has gone goes", "v1.sea.example.com",
		func(_ *apiregistrationv1.APIService, err error) bool { return apierrors.IsNotFound(err) })
	if s, err := services.Get(t.Context(), users.Name, metav1.GetOptions{}); err != nil || s.Spec.VersionPriority != 7 {
		t.Errorf("a user's APIService: %v, %v", s, err)
	}
	config, err := c.admin.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(t.Context(),
		bootstrap.ExtensionAuthentication, metav1.GetOptions{})
	if err != nil || config.Data["client-ca-file"] != string(c.ca.pem) ||
		!strings.Contains(config.Data["requestheader-allowed-names"], ProxyClientName) {
		t.Errorf("what extensions go by: %v, %v", config, err)
	}
}
