package serviceaccounttoken

import (
	"math/rand/v2"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// For any Secret: after it is filled it lacks nothing, and keeps its token and its other data.
func TestDecideConverges(t *testing.T) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "robot", UID: "a-1"}}
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s",
				Annotations: map[string]string{corev1.ServiceAccountNameKey: "robot"}}}
		if r.IntN(4) > 0 {
			s.Data = map[string][]byte{}
			for _, key := range []string{corev1.ServiceAccountTokenKey, corev1.ServiceAccountRootCAKey,
				corev1.ServiceAccountNamespaceKey, "other"} {
				if r.IntN(2) == 0 {
					s.Data[key] = []byte([]string{"", "a", "ca", "ns"}[r.IntN(4)])
				}
			}
		}
		if r.IntN(2) == 0 {
			s.Annotations[corev1.ServiceAccountUIDKey] = "a-1"
		}
		was := s.DeepCopy()
		p := decide(s, account, []byte("ca"))
		if !reflect.DeepEqual(s, was) {
			t.Fatalf("seed %d: the Secret itself was changed", seed)
		}
		if p.fill == nil {
			if p.token || p.remove {
				t.Fatalf("seed %d: %+v", seed, p)
			}
			continue
		}
		if p.token {
			p.fill.Data[corev1.ServiceAccountTokenKey] = []byte("signed")
		} else if string(p.fill.Data[corev1.ServiceAccountTokenKey]) != string(
			was.Data[corev1.ServiceAccountTokenKey]) {
			t.Fatalf("seed %d: the token was exchanged", seed)
		}
		if string(p.fill.Data["other"]) != string(was.Data["other"]) {
			t.Fatalf("seed %d: what is not the controller's was changed", seed)
		}
		if again := decide(p.fill, account, []byte("ca")); !reflect.DeepEqual(again, plan{}) {
			t.Fatalf("seed %d: a filled Secret lacks %+v", seed, again)
		}
	}
}
