package bootstrapsigner

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/controllers/controllertest"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newToken(id string, edits ...func(*corev1.Secret)) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: namePrefix + id},
		Type: corev1.SecretTypeBootstrapToken,
		Data: map[string][]byte{"token-id": []byte(id), "token-secret": []byte("0123456789abcdef"),
			"usage-bootstrap-signing": []byte("true")}}
	for _, edit := range edits {
		edit(s)
	}
	return s
}

func with(key, value string) func(*corev1.Secret) {
	return func(s *corev1.Secret) { s.Data[key] = []byte(value) }
}

// The signature is openssl's for the same header, content and key:
//
//	printf %s "$header.$content" | openssl dgst -sha256 -hmac 0123456789abcdef -binary | basenc --base64url
func TestSign(t *testing.T) {
	const want = "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9..vH_kT4yiol-nrAWgjfCYqvum5wsKETXe0S7OOp1VgnE"
	if got := sign("apiVersion: v1\nkind: Config\n", "abcdef", "0123456789abcdef"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestDecide(t *testing.T) {
	in := func(d time.Duration) string { return now.Add(d).Format(time.RFC3339) }
	secrets := []*corev1.Secret{
		newToken("aaaaaa"), newToken("bbbbbb", with("expiration", in(time.Hour))),
		newToken("cccccc", with("expiration", in(time.Minute))),
		newToken("expire", with("expiration", in(0))), newToken("broken", with("expiration", "soon")),
		newToken("noused", with("usage-bootstrap-signing", "yes")),
		newToken("nosecr", with("token-secret", "")), newToken("other1", with("token-id", "other2")),
		newToken("opaque", func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }),
	}
	data := map[string]string{signed: "k", "else": "e", signature + "gone": "old", signature + "aaaaaa": "old"}
	next, again := decide(data, secrets, now)
	keys := strings.Join(slices.Sorted(maps.Keys(next)), " ")
	if keys != "else jws-kubeconfig-aaaaaa jws-kubeconfig-bbbbbb jws-kubeconfig-cccccc kubeconfig" ||
		next[signature+"aaaaaa"] == "old" || again != time.Minute {
		t.Errorf("%s, again after %v", keys, again)
	}
	if same, _ := decide(next, secrets, now); !maps.Equal(same, next) {
		t.Error("it signs again what is signed")
	}
	if len(data) != 4 {
		t.Error("the informer's data was changed")
	}
	if next, again := decide(map[string]string{"a": "b"}, secrets, now); len(next) != 1 || again != 0 {
		t.Errorf("nothing to sign: %v", next)
	}
}

// A signature comes with its token and goes when that expires.
func TestSignaturesFollowTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"},
				Data: map[string]string{signed: "k"}})
		ctrl, err := New(Config{Informers: c.Informers})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		keys := func() int {
			m, err := c.Client.CoreV1().ConfigMaps("kube-public").Get(t.Context(), "cluster-info", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return len(m.Data)
		}
		if _, err := c.Client.CoreV1().Secrets("kube-system").Create(t.Context(),
			newToken("aaaaaa", with("expiration", time.Now().Add(time.Hour).Format(time.RFC3339))),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "a signature", func() bool { return keys() == 2 })
		time.Sleep(time.Hour)
		controllertest.Eventually(t, "none any more", func() bool { return keys() == 1 })
	})
}
