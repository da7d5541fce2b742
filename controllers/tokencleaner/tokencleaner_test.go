package tokencleaner_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/tokencleaner"
)

func TestTokensGoWhenTheyExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t)
		add := func(name, expiration string, kind corev1.SecretType) {
			s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}, Type: kind,
				Data: map[string][]byte{}}
			if expiration != "" {
				s.Data["expiration"] = []byte(expiration)
			}
			c.Add(s)
		}
		in := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }
		add("a-hour", in(time.Hour), corev1.SecretTypeBootstrapToken)
		add("b-past", in(-time.Hour), corev1.SecretTypeBootstrapToken)
		add("c-ever", "", corev1.SecretTypeBootstrapToken)
		add("d-nonsense", "tomorrow", corev1.SecretTypeBootstrapToken)
		add("e-other", in(-time.Hour), corev1.SecretTypeOpaque)
		ctrl, err := tokencleaner.New(tokencleaner.Config{Informers: c.Informers})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		left := func() []string {
			l, err := c.Client.CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, s := range l.Items {
				names = append(names, s.Name)
			}
			slices.Sort(names)
			return names
		}
		time.Sleep(time.Minute)
		if got, want := left(), []string{"a-hour", "c-ever", "e-other"}; !slices.Equal(got, want) {
			t.Errorf("after a minute: %v, want %v", got, want)
		}
		time.Sleep(time.Hour)
		if got, want := left(), []string{"c-ever", "e-other"}; !slices.Equal(got, want) {
			t.Errorf("after an hour: %v, want %v", got, want)
		}
	})
}
