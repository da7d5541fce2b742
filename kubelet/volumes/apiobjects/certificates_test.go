package apiobjects

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/kubelet/volumes"
	"github.com/barque/barque/kubelet/volumes/hostmount"
)

// signerWorld is an API with a signer that the test controls.
type signerWorld struct {
	t      *testing.T
	client *fake.Clientset
	certs  *RequestedCertificates
	told   heard

	mu     sync.Mutex
	made   []*certificatesv1.PodCertificateRequest
	events []string
	down   bool // the API refuses requests
}

func newSignerWorld(t *testing.T) *signerWorld {
	w := &signerWorld{t: t, client: fake.NewClientset(
		&v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "robot", UID: "sa-uid"}},
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node-uid"}},
	)}
	w.client.PrependReactor("create", "podcertificaterequests",
		func(a clienttesting.Action) (bool, runtime.Object, error) {
			r := a.(clienttesting.CreateAction).GetObject().(*certificatesv1.PodCertificateRequest)
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.down {
				return true, nil, apierrors.NewServiceUnavailable("down")
			}
			r.Name = fmt.Sprintf("%s%d", r.GenerateName, len(w.made))
			r.CreationTimestamp = metav1.Now()
			w.made = append(w.made, r.DeepCopy())
			return false, nil, nil
		})
	w.certs = NewCertificates(CertificatesConfig{Client: w.client, NodeName: "n1", Changed: w.told.tell,
		Tell: func(_ *v1.Pod, kind, reason, message string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events = append(w.events, kind+" "+reason+": "+message)
		}})
	return w
}

func (w *signerWorld) requests() []*certificatesv1.PodCertificateRequest {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.made
}

func (w *signerWorld) warnings(reason string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, e := range w.events {
		if strings.HasPrefix(e, "Warning "+reason+": ") {
			n++
		}
	}
	return n
}

func (w *signerWorld) setDown(down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = down
}

// end ends the newest request.
func (w *signerWorld) end(kind string, life time.Duration) {
	w.t.Helper()
	made := w.requests()
	api := w.client.CertificatesV1().PodCertificateRequests("ns")
	r, err := api.Get(w.t.Context(), made[len(made)-1].Name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	now := metav1.Now()
	r.Status.Conditions = []metav1.Condition{
		{Type: kind, Status: metav1.ConditionTrue, Reason: "Why", Message: "because", LastTransitionTime: now}}
	if kind == certificatesv1.PodCertificateRequestConditionTypeIssued {
		r.Status.CertificateChain = "text between\n" + pemOf("leaf of "+r.Name, "intermediate")
		r.Status.NotBefore, r.Status.NotAfter = &now, ptr.To(metav1.NewTime(now.Add(life)))
		r.Status.BeginRefreshAt = ptr.To(metav1.NewTime(now.Add(life / 2)))
	}
	if _, err := api.UpdateStatus(w.t.Context(), r, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

func (w *signerWorld) issue(life time.Duration) {
	w.t.Helper()
	w.end(certificatesv1.PodCertificateRequestConditionTypeIssued, life)
}

func robot(uid types.UID) *v1.Pod {
	pod := podOf(uid)
	pod.Spec.ServiceAccountName = "robot"
	return pod
}

func ed25519Source() *v1.PodCertificateProjection {
	return &v1.PodCertificateProjection{SignerName: "example.com/s", KeyType: "ED25519",
		CredentialBundlePath: "bundle.pem",
		MaxExpirationSeconds: ptr.To[int32](7200), UserAnnotations: map[string]string{"example.com/a": "b"}}
}

// TestACertificateIsAskedFor: the request names the pod, its account and its node; the signer
// answers while the pod waits a moment.
func TestACertificateIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSignerWorld(t)
		defer w.certs.Close()
		pod, source := robot("u"), ed25519Source()
		got := make(chan []byte)
		go func() {
			key, chain, _, err := w.certs.Get(t.Context(), pod, "v", 3, source)
			if err != nil {
				t.Error(err)
			}
			got <- key
			got <- chain
		}()
		time.Sleep(3 * time.Second)
		made := w.requests()
		if len(made) != 1 {
			t.Fatalf("%d requests", len(made))
		}
		spec := made[0].Spec
		if spec.SignerName != source.SignerName || spec.PodName != pod.Name || spec.PodUID != pod.UID ||
			spec.ServiceAccountName != "robot" ||
			spec.ServiceAccountUID != "sa-uid" || spec.NodeName != "n1" || spec.NodeUID != "node-uid" ||
			*spec.MaxExpirationSeconds != 7200 || spec.UnverifiedUserAnnotations["example.com/a"] != "b" {
			t.Errorf("asked for %+v", spec)
		}
		if o := made[0].OwnerReferences; len(o) != 1 || o[0].Kind != "Pod" || o[0].UID != pod.UID {
			t.Errorf("owned by %+v", o)
		}
		proof, err := x509.ParseCertificateRequest(spec.StubPKCS10Request)
		if err != nil || proof.CheckSignature() != nil {
			t.Fatalf("the proof: %v", err)
		}
		w.issue(2 * time.Hour)
		block, _ := pem.Decode(<-got)
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if !proof.PublicKey.(ed25519.PublicKey).Equal(key.(crypto.Signer).Public()) {
			t.Error("the key is not that of the request")
		}
		if chain := string(<-got); chain != pemOf("leaf of req-0", "intermediate") {
			t.Errorf("the chain is %q", chain)
		}
		if got := w.told.take(); got != "[u]" {
			t.Errorf("told of the answer: %s", got)
		}
		// The same source again is the same certificate; another is another.
		if _, chain, again, err := w.certs.Get(t.Context(), pod, "v", 3, source); err != nil ||
			namesIn(chain) != "intermediate leaf of req-0" || time.Until(again) < time.Hour-3*time.Second {
			t.Errorf("again: %q, %v, %v", chain, time.Until(again), err)
		}
		go w.certs.Get(t.Context(), pod, "v", 4, source)
		time.Sleep(time.Second)
		if n := len(w.requests()); n != 2 {
			t.Errorf("%d requests for two sources", n)
		}
		time.Sleep(time.Minute)
		w.certs.Forget("u")
		if w.certs.requests.live != nil || len(w.certs.kept) > 0 {
			t.Error("a forgotten pod's certificates are kept")
		}
	})
}

// TestCertificatesAreRefreshed: a new certificate is requested when it is time, with a new key. The
// old one is used until it comes, also while the signer does not answer, or the API server refuses
// the request. The pod gets one event when it is late, and one when the certificate has ended.
func TestCertificatesAreRefreshed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSignerWorld(t)
		defer w.certs.Close()
		pod, source := robot("u"), ed25519Source()
		get := func() (key, chain string, again time.Time) {
			t.Helper()
			k, c, again, err := w.certs.Get(t.Context(), pod, "v", 0, source)
			if err != nil {
				t.Fatal(err)
			}
			return string(k), namesIn(c), again
		}
		if _, _, _, err := w.certs.Get(t.Context(), pod, "v", 0, source); !errors.Is(err, volumes.ErrNotIssued) {
			t.Fatalf("without an answer: %v", err)
		}
		issued := time.Now()
		w.issue(2 * time.Hour)
		first, chain, again := get()
		if chain != "intermediate leaf of req-0" {
			t.Fatalf("the chain is %s", chain)
		}
		if due := again.Sub(issued); due < time.Hour || due > time.Hour+spread {
			t.Errorf("to be refreshed after %v", due)
		}
		time.Sleep(time.Until(again) - time.Second)
		if get(); len(w.requests()) != 1 {
			t.Error("refreshed too early")
		}
		time.Sleep(2 * time.Second)
		w.setDown(true)
		if key, _, again := get(); key != first || time.Until(again) > time.Minute || !again.After(time.Now()) {
			t.Errorf("an API that is down: another key: %v, again in %v", key != first, time.Until(again))
		}
		w.setDown(false)
		time.Sleep(time.Minute)
		if key, chain, _ := get(); key != first || chain != "intermediate leaf of req-0" || len(w.requests()) != 2 {
			t.Errorf("while it is refreshed: another key: %v, %s, %d requests", key != first, chain, len(w.requests()))
		}
		// The signer does not answer until the certificate has ended. The kubelet looks at the time
		// that Get returned.
		for time.Since(issued) < 2*time.Hour+time.Minute {
			_, _, again := get()
			if !again.After(time.Now()) {
				t.Fatalf("to be looked at again %v ago", time.Since(again))
			}
			time.Sleep(min(time.Until(again), 2*time.Hour+time.Minute-time.Since(issued)))
		}
		get()
		if late, ended := w.warnings("CertificateOverdueForRefresh"), w.warnings("CertificateExpired"); late != 1 ||
			ended != 1 {
			t.Errorf("told %d times that it is late, %d times that it has ended", late, ended)
		}
		w.issue(2 * time.Hour)
		key, chain, _ := get()
		if last := w.requests()[len(w.requests())-1].Name; key == first || chain != "intermediate leaf of "+last {
			t.Errorf("after the answer: the same key: %v, %s", key == first, chain)
		}
	})
}

// TestARequestThatIsGone is made again after a pause; after a refusal there is no further request.
func TestARequestThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSignerWorld(t)
		defer w.certs.Close()
		pod, source := robot("u"), ed25519Source()
		get := func() error {
			_, _, _, err := w.certs.Get(t.Context(), pod, "v", 0, source)
			return err
		}
		began := time.Now()
		if err := get(); !errors.Is(err, volumes.ErrNotIssued) {
			t.Fatal(err)
		}
		if err := w.client.CertificatesV1().PodCertificateRequests("ns").Delete(t.Context(), "req-0",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		for len(w.requests()) == 1 {
			if err := get(); !errors.Is(err, volumes.ErrNotIssued) {
				t.Fatal(err)
			}
			time.Sleep(30 * time.Second)
		}
		if took := time.Since(began); took < abandonAfter || took > abandonAfter+spread+time.Minute {
			t.Errorf("asked again after %v", took)
		}
		w.end(certificatesv1.PodCertificateRequestConditionTypeDenied, 0)
		for range 3 {
			if err := get(); err == nil ||
				!strings.Contains(err.Error(), `permanently denied: reason="Why" message="because"`) {
				t.Errorf("refused: %v", err)
			}
			time.Sleep(time.Hour)
		}
		if n := w.warnings("Denied"); n != 1 || len(w.requests()) != 2 {
			t.Errorf("told %d times, %d requests", n, len(w.requests()))
		}
		other := robot("v")
		if _, _, _, err := w.certs.Get(t.Context(), other, "v", 0,
			&v1.PodCertificateProjection{SignerName: "example.com/s", KeyType: "DSA"}); err == nil {
			t.Error("a key of an unknown type was made")
		}
		nobody := robot("w")
		nobody.Spec.ServiceAccountName = "gone"
		if _, _, _, err := w.certs.Get(t.Context(), nobody, "v", 0, source); !volumes.IsNotFound(err) {
			t.Errorf("an account that is gone: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, _, err := w.certs.Get(ctx, robot("x"), "v", 0, source); err == nil {
			t.Error("a pod that goes got a certificate")
		}
	})
}

func TestKeyTypes(t *testing.T) {
	for kind, want := range map[string]string{
		"RSA3072": "RSA 3072", "ECDSAP256": "ECDSA P-256", "ECDSAP384": "ECDSA P-384", "ECDSAP521": "ECDSA P-521",
		"ED25519": "Ed25519",
	} {
		key, proof, err := generateKey(kind)
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		r, err := x509.ParseCertificateRequest(proof)
		if err != nil || r.CheckSignature() != nil || r.Subject.String() != "" {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		if !strings.HasPrefix(want, r.PublicKeyAlgorithm.String()) ||
			!bytes.Contains(key, []byte("-----BEGIN PRIVATE KEY-----")) {
			t.Errorf("%s is %s", kind, r.PublicKeyAlgorithm)
		}
	}
}

// TestACertificateNeverSpins: whatever a signer does and at any time, nothing is requested twice,
// only a refusal loses a certificate, and the next look is in the future.
func TestACertificateNeverSpins(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		c, now, had := &certificate{}, time.Unix(1e9, 0), false
		for range 50 {
			now = now.Add(time.Duration(rng.Int64N(int64(20 * time.Minute))))
			var found *certificatesv1.PodCertificateRequest
			if c.asked != nil && rng.IntN(2) == 0 {
				found = &certificatesv1.PodCertificateRequest{
					ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: c.asked.name}}
				kinds := []string{"", "", certificatesv1.PodCertificateRequestConditionTypeIssued,
					certificatesv1.PodCertificateRequestConditionTypeIssued, "Odd",
					certificatesv1.PodCertificateRequestConditionTypeDenied,
					certificatesv1.PodCertificateRequestConditionTypeFailed}
				if kind := kinds[rng.IntN(len(kinds)-2*rng.IntN(2))]; kind != "" {
					found.Status.Conditions = []metav1.Condition{{Type: kind, Status: metav1.ConditionTrue}}
				}
				if life := time.Duration(rng.Int64N(int64(4 * time.Hour))); rng.IntN(10) > 0 {
					found.Status.BeginRefreshAt, found.Status.NotAfter = ptr.To(metav1.NewTime(now.Add(life/2))),
						ptr.To(metav1.NewTime(now.Add(life)))
				}
			}
			c.observe(found, now, time.Duration(rng.Int64N(int64(spread))))
			if had && c.issued == nil && c.refusal == nil {
				t.Fatal("a certificate was lost")
			}
			had = c.issued != nil
			if c.toBeAsked(now) {
				if c.asked != nil || c.refusal != nil {
					t.Fatal("asked twice")
				}
				c.asked = &certificateRequest{name: "r", at: now, abandonAt: now.Add(abandonAfter)}
			}
			if next := c.next(); !next.IsZero() && !next.After(now) {
				t.Fatalf("to be looked at %v ago: %+v", now.Sub(next), c)
			}
			if c.next().IsZero() != (c.refusal != nil) {
				t.Fatalf("nothing will happen to %+v", c)
			}
		}
	}
}

// memory takes the directory of a volume for a tmpfs, since only root may mount one.
type memory struct{ volumes.Mounts }

func (memory) Tmpfs(dir string, _ int64, _ hostmount.Root) error { return os.MkdirAll(dir, 0o755) }
func (memory) Unmount(string) error                              { return nil }

// TestProjectedTrust: the files of bundles and certificates in a volume, with their modes. A
// refresh changes key and chain at once.
func TestProjectedTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSignerWorld(t)
		defer w.certs.Close()
		if err := w.client.Tracker().Add(trustBundle("b", "", nil, "anchor")); err != nil {
			t.Fatal(err)
		}
		bundles := NewTrustBundles(w.client, w.told.tell)
		defer bundles.Close()
		objects := NewObjects(w.client, w.told.tell)
		defer objects.Close()
		m := volumes.New(
			volumes.Config{RootDir: t.TempDir(), Mounts: memory{}, Tokens: NewTokens(w.client, nil), Objects: objects,
				Bundles: bundles, Certificates: w.certs})
		pod := robot("u")
		source := ed25519Source()
		source.KeyPath, source.CertificateChainPath = "tls/key.pem", "tls/chain.pem"
		pod.Spec.Volumes = []v1.Volume{
			{Name: "v",
				VolumeSource: v1.VolumeSource{
					Projected: &v1.ProjectedVolumeSource{DefaultMode: ptr.To[int32](0o440),
						Sources: []v1.VolumeProjection{
							{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Name: ptr.To("b"),
								Path: "anchors.pem"}},
							{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Name: ptr.To("gone"),
								Path:     "none.pem",
								Optional: ptr.To(true)}},
							{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{SignerName: ptr.To("example.com/s"),
								Path: "nobody.pem", Optional: ptr.To(true)}},
							{PodCertificate: source},
						}}}}}
		if _, _, err := m.Mount(t.Context(), pod); !errors.Is(err, volumes.ErrNotIssued) {
			t.Fatalf("before the signer has answered: %v", err)
		}
		w.issue(2 * time.Hour)
		paths, next, err := m.Mount(t.Context(), pod)
		if err != nil {
			t.Fatal(err)
		}
		if due := time.Until(next); due < 50*time.Minute || due > 70*time.Minute {
			t.Errorf("to be looked at again in %v", due)
		}
		show := func() map[string]string {
			shown := map[string]string{}
			for _, name := range []string{"anchors.pem", "none.pem", "nobody.pem", "bundle.pem", "tls/key.pem",
				"tls/chain.pem"} {
				data, err := os.ReadFile(filepath.Join(paths["v"], name))
				if err != nil {
					t.Fatal(err)
				}
				shown[name] = string(data)
			}
			return shown
		}
		got := show()
		key := got["tls/key.pem"]
		if got["anchors.pem"] != pemOf("anchor") || got["none.pem"] != "" || got["nobody.pem"] != "" ||
			got["bundle.pem"] != key+got["tls/chain.pem"] ||
			got["tls/chain.pem"] != pemOf("leaf of req-0", "intermediate") {
			t.Errorf("shows %v", got)
		}
		modes := func(want os.FileMode) {
			t.Helper()
			for name := range got {
				if info, err := os.Stat(filepath.Join(paths["v"], name)); err != nil || info.Mode().Perm() != want {
					t.Errorf("%s has mode %v, %v", name, info.Mode(), err)
				}
			}
		}
		modes(0o440)
		time.Sleep(time.Until(next))
		if _, _, err := m.Mount(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		if show()["tls/key.pem"] != key {
			t.Error("the key has changed before there is a certificate for it")
		}
		w.issue(2 * time.Hour)
		if _, _, err := m.Mount(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		if now := show(); now["tls/key.pem"] == key || now["tls/chain.pem"] != pemOf("leaf of req-1", "intermediate") ||
			now["bundle.pem"] != now["tls/key.pem"]+now["tls/chain.pem"] {
			t.Errorf("after the refresh it shows %v", now)
		}
		// One user for all containers: it owns the files alone.
		pod.Spec.Containers = []v1.Container{
			{SecurityContext: &v1.SecurityContext{RunAsUser: ptr.To(int64(os.Getuid()))}}}
		if _, _, err := m.Mount(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		modes(0o600)
		if err := m.Unmount(pod.UID); err != nil {
			t.Fatal(err)
		}
		if len(w.certs.kept) > 0 || len(bundles.asked) > 0 {
			t.Error("something is kept of a pod that is gone")
		}
		for _, s := range []v1.VolumeProjection{
			{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Name: ptr.To("gone"), Path: "a"}},
			{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{SignerName: ptr.To("example.com/s"),
				LabelSelector: &metav1.LabelSelector{}, Path: "a"}},
			{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Path: "a", Optional: ptr.To(true)}},
		} {
			pod.Spec.Volumes[0].Projected.Sources = []v1.VolumeProjection{s}
			if _, _, err := m.Mount(t.Context(), pod); err == nil {
				t.Errorf("%+v was mounted", s.ClusterTrustBundle)
			}
		}
	})
}
