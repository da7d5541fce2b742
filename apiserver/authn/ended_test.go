package authn

import (
	"context"
	"crypto"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/barque/barque/internal/cutoff"
)

// TestEnded: the token of an open watch counts no more when its pod, account, Secret or key is
// gone. An end by time ends no watch, nor does an object that cannot be looked up.
func TestEnded(t *testing.T) {
	key, next := newKey(t), newKey(t)
	now := time.Date(2026, 3, 4, 23, 0, 0, 0, time.UTC)
	bound := Binding{Namespace: "ns", ServiceAccount: "robot", ServiceAccountUID: "sa-1",
		Audiences: []string{issuerURL}, Lifetime: time.Hour}
	ofPod, ofNode, ofSecret := bound, bound, bound
	ofPod.PodName, ofPod.PodUID, ofPod.NodeName, ofPod.NodeUID = "p", "pod-1", "n", "node-1"
	ofNode.NodeName, ofNode.NodeUID = "n", "node-1"
	ofSecret.SecretName, ofSecret.SecretUID = "s", "s-1"
	type change = func(t *testing.T, client *fake.Clientset, pod *corev1.Pod, secret *corev1.Secret)
	remove := func(kind, namespace, name string) change {
		return func(t *testing.T, client *fake.Clientset, _ *corev1.Pod, _ *corev1.Secret) {
			if err := client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource(kind), namespace,
				name); err != nil {
				t.Fatal(err)
			}
		}
	}
	becomes := func(alter func(pod *corev1.Pod, secret *corev1.Secret)) change {
		return func(t *testing.T, client *fake.Clientset, pod *corev1.Pod, secret *corev1.Secret) {
			alter(pod, secret)
			tracker, v1 := client.Tracker(), corev1.SchemeGroupVersion
			err := errors.Join(tracker.Update(v1.WithResource("pods"), pod, "ns"),
				tracker.Update(v1.WithResource("secrets"), secret, "ns"))
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	fails := func(kind string) change {
		return func(_ *testing.T, client *fake.Clientset, _ *corev1.Pod, _ *corev1.Secret) {
			client.PrependReactor("get", kind, func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, errors.New("there is no quorum")
			})
		}
	}
	endedAt := func(at time.Time) change {
		return becomes(func(p *corev1.Pod, _ *corev1.Secret) { p.DeletionTimestamp = &metav1.Time{Time: at} })
	}
	for what, c := range map[string]struct {
		of     *Binding // nil: a token that a Secret holds
		change change
		key    crypto.Signer // afterwards; nil: the same
		later  time.Duration
		ends   bool
	}{
		"nothing has changed":           {of: &ofPod},
		"it is older than its time":     {of: &ofPod, later: 2 * time.Hour},
		"the key is gone":               {of: &ofPod, key: next, ends: true},
		"the key of a Secret's is gone": {key: next, ends: true},
		"the pod is gone":               {of: &ofPod, change: remove("pods", "ns", "p"), ends: true},
		"the account is gone":           {of: &ofPod, change: remove("serviceaccounts", "ns", "robot"), ends: true},
		"the account of a Secret's is":  {change: remove("serviceaccounts", "ns", "robot"), ends: true},
		"the node is gone":              {of: &ofNode, change: remove("nodes", "", "n"), ends: true},
		"the node of its pod is gone":   {of: &ofPod, change: remove("nodes", "", "n")},
		"its Secret is gone":            {of: &ofSecret, change: remove("secrets", "ns", "s"), ends: true},
		"the Secret that holds it is":   {change: remove("secrets", "ns", "s"), ends: true},
		"another pod of that name": {of: &ofPod,
			change: becomes(func(p *corev1.Pod, _ *corev1.Secret) { p.UID = "pod-2" }), ends: true},
		"the pod is ending":      {of: &ofPod, change: endedAt(now)},
		"the pod ended long ago": {of: &ofPod, change: endedAt(now.Add(-time.Hour)), ends: true},
		"the Secret holds another": {
			change: becomes(func(_ *corev1.Pod, s *corev1.Secret) { s.Data["token"] = []byte("x") }), ends: true},
		"the Secret is marked": {change: becomes(func(_ *corev1.Pod, s *corev1.Secret) {
			s.Labels = map[string]string{invalidSinceLabel: "2026-03-01"}
		}), ends: true},
		"pods cannot be looked up":     {of: &ofPod, change: fails("pods")},
		"accounts cannot be looked up": {of: &ofPod, change: fails("serviceaccounts")},
		"Secrets cannot be looked up":  {change: fails("secrets")},
	} {
		t.Run(what, func(t *testing.T) {
			signer, at := key, &clock{now}
			issuer, err := NewIssuer(issuerURL, func() (crypto.Signer, []crypto.PublicKey) { return signer, nil },
				at.now)
			if err != nil {
				t.Fatal(err)
			}
			var token string
			if c.of != nil {
				token, _, _, err = issuer.Issue(*c.of)
			} else {
				token, err = issuer.IssueLegacy(ofSecret)
			}
			if err != nil {
				t.Fatal(err)
			}
			known, client := objects(t)
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "pod-1"}}
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", UID: "s-1"},
				Data: map[string][]byte{"token": []byte(token)}}
			for _, o := range []runtime.Object{pod, secret,
				&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "robot", UID: "sa-1"}},
				&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "node-1"}}} {
				if err := client.Tracker().Add(o); err != nil {
					t.Fatal(err)
				}
			}
			ended := Ended(Config{Issuer: issuer, Objects: known, Now: at.now})
			if err := ended(t.Context(), token); err != nil {
				t.Fatalf("before: %v", err)
			}
			if c.change != nil {
				c.change(t, client, pod, secret)
			}
			if c.key != nil {
				signer = c.key
			}
			at.at = at.at.Add(c.later)
			if err := ended(t.Context(), token); (err != nil) != c.ends {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// TestTokensOfOthersDoNotEnd: a token of another issuer, and a cluster without one.
func TestTokensOfOthersDoNotEnd(t *testing.T) {
	own, err := NewIssuer(issuerURL, only(newKey(t)), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewIssuer("https://accounts.example.com", only(newKey(t)), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	foreign, _, _, err := other.Issue(Binding{Namespace: "ns", ServiceAccount: "a", Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	known, _ := objects(t)
	for what, issuer := range map[string]*Issuer{"another issuer": own, "no issuer": nil} {
		for _, token := range []string{foreign, "abcdef.0123456789abcdef", "secret", ""} {
			if err := Ended(Config{Issuer: issuer, Objects: known, Now: time.Now})(t.Context(), token); err != nil {
				t.Errorf("%s: %q has ended: %v", what, token, err)
			}
		}
	}
}

// TestNotedTokens: only requests that a token of a service account authenticated end with
// the token.
func TestNotedTokens(t *testing.T) {
	key := newKey(t)
	issuer, err := NewIssuer(issuerURL, only(key), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	known, client := objects(t)
	for _, o := range []runtime.Object{
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "robot", UID: "sa-1"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-abcdef"},
			Type: corev1.SecretTypeBootstrapToken,
			Data: map[string][]byte{"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"),
				"usage-bootstrap-authentication": []byte("true")}},
	} {
		if err := client.Tracker().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	robot, _, _, err := issuer.Issue(
		Binding{Namespace: "ns", ServiceAccount: "robot", ServiceAccountUID: "sa-1", Audiences: []string{issuerURL},
			Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	requests, _, err := New(Config{Issuer: issuer, Audiences: []string{issuerURL}, Objects: known, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		token string
		noted bool
	}{
		"a service account": {robot, true}, "a bootstrap token": {"abcdef.0123456789abcdef", false},
		"a wrong one": {otherSignature(robot), false},
	} {
		r := with()
		r.Header = http.Header{"Authorization": {"Bearer " + c.token}}
		gone := errors.New("the pod is gone")
		lasting := cutoff.OfTokens(func(_ context.Context, token string) error {
			if token != c.token {
				t.Errorf("%s: it is %q", what, token)
			}
			return gone
		}, func(*http.Request) bool { return true })
		cutoff.WithProof(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, ok, err := requests.AuthenticateRequest(r); ok == (c.token != robot && !IsBootstrapToken(c.token)) {
				t.Errorf("%s: %t, %v", what, ok, err)
			}
			lasting.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				lasting.LookAtTokens(r.Context())
				if err := context.Cause(r.Context()); errors.Is(err, gone) != c.noted {
					t.Errorf("%s: ended by %v", what, err)
				}
			})).ServeHTTP(w, r)
		})).ServeHTTP(httptest.NewRecorder(), r)
	}
}
