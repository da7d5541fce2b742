package users

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"
)

// cluster answers like a cluster whose leader signs approved requests.
func cluster(t *testing.T, decide func(r *certificatesv1.CertificateSigningRequest) error) *fake.Clientset {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	client := fake.NewClientset()
	client.PrependReactor("create", "certificatesigningrequests",
		func(a clienttesting.Action) (bool, runtime.Object, error) {
			r := a.(clienttesting.CreateAction).GetObject().(*certificatesv1.CertificateSigningRequest)
			r.Name, r.Spec.Username, r.CreationTimestamp = r.GenerateName+"x", "root", metav1.Now()
			return false, nil, nil
		})
	client.PrependReactor("update", "certificatesigningrequests",
		func(a clienttesting.Action) (bool, runtime.Object, error) {
			r := a.(clienttesting.UpdateAction).GetObject().(*certificatesv1.CertificateSigningRequest)
			if a.GetSubresource() != "approval" {
				return false, nil, nil
			}
			if err := decide(r); err != nil {
				return true, nil, err
			}
			block, _ := pem.Decode(r.Spec.Request)
			request, err := x509.ParseCertificateRequest(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			der, err := x509.CreateCertificate(rand.Reader,
				&x509.Certificate{SerialNumber: big.NewInt(0xabc), Subject: request.Subject,
					NotAfter:    time.Now().Add(time.Duration(*r.Spec.ExpirationSeconds) * time.Second),
					ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, ca, request.PublicKey, key)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Status.Conditions) == 1 {
				r.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
			}
			return false, nil, nil
		})
	return client
}

func none(*x509.Certificate) error { return nil }

func TestAddAndList(t *testing.T) {
	client := cluster(t, func(*certificatesv1.CertificateSigningRequest) error { return nil })
	made, err := Add(t.Context(), client, Order{Name: "ann", Groups: []string{"dev", "barque:admins"}, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(made.Expires); made.Name != "ann" || made.Serial != "abc" || made.By != "root" ||
		!slices.Equal(made.Groups, []string{"dev", "barque:admins"}) || left > time.Hour || left <= 0 {
		t.Errorf("%+v", made.Info)
	}
	c := Cluster{Server: "https://10.0.0.5:6443", CA: []byte("ca")}
	data, err := made.Kubeconfig(c)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(data)
	if err != nil || config.Host != c.Server {
		t.Fatalf("%+v, %v", config, err)
	}
	if _, err := tls.X509KeyPair(config.CertData, config.KeyData); err != nil {
		t.Errorf("the kubeconfig's certificate and key: %v", err)
	}
	all, err := List(t.Context(), client, time.Now(), none)
	if err != nil || len(all) != 1 || all[0].Name != "ann" || all[0].Revoked != "" {
		t.Errorf("%+v, %v", all, err)
	}
	all, err = List(t.Context(), client, time.Now(), func(cert *x509.Certificate) error {
		if cert.SerialNumber.Int64() == 0xabc {
			return errors.New("it is revoked")
		}
		return nil
	})
	if err != nil || len(all) != 1 || all[0].Revoked != "it is revoked" {
		t.Errorf("a revoked one: %+v, %v", all, err)
	}
	if all, err := List(t.Context(), client, time.Now().Add(2*time.Hour), none); err != nil || len(all) != 0 {
		t.Errorf("ended certificates are listed: %+v, %v", all, err)
	}
}

// TestFailedAdd: a request without a certificate does not stay as a user.
func TestFailedAdd(t *testing.T) {
	forbidden := errors.New("you may not approve")
	for name, c := range map[string]struct {
		decide func(*certificatesv1.CertificateSigningRequest) error
		want   string
	}{
		"not permitted": {func(*certificatesv1.CertificateSigningRequest) error { return forbidden },
			"may not approve"},
		"refused": {func(r *certificatesv1.CertificateSigningRequest) error {
			r.Status.Conditions = append(r.Status.Conditions,
				certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateFailed,
					Message: "the name is not signed"})
			return nil
		}, "the name is not signed"},
	} {
		t.Run(name, func(t *testing.T) {
			client := cluster(t, c.decide)
			if _, err := Add(t.Context(), client, Order{Name: "ann", TTL: time.Hour}); err == nil ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			left, err := client.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
			if err != nil || len(left.Items) != 0 {
				t.Errorf("%+v, %v", left, err)
			}
		})
	}
	t.Run("given up", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		client := cluster(t, func(r *certificatesv1.CertificateSigningRequest) error {
			r.Status.Conditions = append(r.Status.Conditions, r.Status.Conditions[0]) // the request is never signed
			cancel()
			return nil
		})
		if _, err := Add(ctx, client, Order{Name: "ann", TTL: time.Hour}); err == nil {
			t.Error("there is a certificate")
		}
		if left, err := client.CertificatesV1().CertificateSigningRequests().List(t.Context(),
			metav1.ListOptions{}); err != nil || len(left.Items) != 0 {
			t.Errorf("%+v, %v", left, err)
		}
	})
}

func TestCheck(t *testing.T) {
	for name, o := range map[string]Order{
		"no name":        {TTL: time.Hour},
		"a node":         {Name: "system:node:n1", TTL: time.Hour},
		"a server":       {Name: "barque:apiserver", TTL: time.Hour},
		"masters":        {Name: "ann", Groups: []string{"system:masters"}, TTL: time.Hour},
		"nodes":          {Name: "ann", Groups: []string{"system:nodes"}, TTL: time.Hour},
		"servers":        {Name: "ann", Groups: []string{"barque:servers"}, TTL: time.Hour},
		"an empty group": {Name: "ann", Groups: []string{""}, TTL: time.Hour},
		"twice":          {Name: "ann", Groups: []string{"a", "a"}, TTL: time.Hour},
		"a line":         {Name: "ann\nbob", TTL: time.Hour},
		"a space":        {Name: " ann", TTL: time.Hour},
		"long":           {Name: strings.Repeat("a", 65), TTL: time.Hour},
		"short":          {Name: "ann", TTL: time.Minute},
		"for ever":       {Name: "ann", TTL: 10 * longestTTL},
	} {
		if err := o.Check(); err == nil {
			t.Errorf("%s: %+v is taken", name, o)
		}
	}
	if err := (Order{Name: "Ann Ä. <ann@example.org>", Groups: []string{"dev", "barque:admins"},
		TTL: DefaultTTL}).Check(); err != nil {
		t.Error(err)
	}
}

// TestMerge: a kubeconfig keeps its other entries.
func TestMerge(t *testing.T) {
	made := &Made{Info: Info{Name: "ann"}, Certificate: []byte("c"), Key: []byte("k")}
	path := filepath.Join(t.TempDir(), "kube", "config")
	first, err := made.Merge(path, Cluster{Server: "https://one:6443", CA: []byte("1")})
	if err != nil {
		t.Fatal(err)
	}
	second, err := made.Merge(path, Cluster{Server: "https://two:6443", CA: []byte("2")})
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(path)
	if err != nil || len(config.Contexts) != 2 || config.CurrentContext != first || first != "ann@barque-one:6443" ||
		config.Clusters[config.Contexts[second].Cluster].Server != "https://two:6443" {
		t.Errorf("%+v, %v", config, err)
	}
}

func TestClusterOf(t *testing.T) {
	config := &rest.Config{Host: "https://127.0.0.1:6443"}
	c, err := ClusterOf(config, "")
	if err != nil || !c.IsLocal() {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := ClusterOf(config, "https://10.0.0.5:6443"); err != nil || c.IsLocal() ||
		c.name() != "barque-10.0.0.5:6443" {
		t.Errorf("%+v, %v", c, err)
	}
	for _, wrong := range []string{"10.0.0.5:6443", "http://x:1", "https://", "https://a:b@x"} {
		if _, err := ClusterOf(config, wrong); err == nil {
			t.Errorf("%s is taken", wrong)
		}
	}
}
