package ephemeralvolume

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/controllers/controllertest"
)

func pod(volumes ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "p", UID: "u"}}
	for _, name := range volumes {
		p.Spec.Volumes = append(p.Spec.Volumes,
			corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
				VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
					ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"l": name},
						Annotations: map[string]string{"a": name}},
					Spec: corev1.PersistentVolumeClaimSpec{
						AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}},
				}}}})
	}
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "other"})
	return p
}

func TestDecide(t *testing.T) {
	p := pod("a", "b", "c")
	claims := map[string]*corev1.PersistentVolumeClaim{}
	find := func(name string) (*corev1.PersistentVolumeClaim, error) { return claims[name], nil }
	names := func(create []missing) string {
		var out []string
		for _, m := range create {
			out = append(out, m.object.Name)
		}
		return strings.Join(out, " ")
	}
	create, _, err := decide(p, find)
	if names(create) != "p-a p-b p-c" || err != nil {
		t.Errorf("nothing is there: create %s, %v", names(create), err)
	}
	first := create[0].object
	if !metav1.IsControlledBy(first, p) || !*first.OwnerReferences[0].BlockOwnerDeletion || first.Labels["l"] != "a" ||
		first.Annotations["a"] != "a" || len(first.Spec.AccessModes) != 1 {
		t.Errorf("claim %+v", first)
	}
	claims["p-a"] = first
	claims["p-b"] = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "p-b"}}
	create, volume, err := decide(p, find)
	if len(create) != 0 || volume != "b" || err == nil ||
		err.Error() != "PVC d/p-b was not created for pod d/p (pod is not owner)" {
		t.Errorf("one is somebody's: create %s, volume %s, %v", names(create), volume, err)
	}
	delete(claims, "p-b")
	if create, _, err := decide(p, find); names(create) != "p-b p-c" || err != nil {
		t.Errorf("two are missing: create %s, %v", names(create), err)
	}
	p.DeletionTimestamp = &metav1.Time{}
	if create, _, err := decide(p, find); len(create) != 0 || err != nil {
		t.Errorf("it goes: create %s, %v", names(create), err)
	}
}

// A claim is made with its pod, made again after a deletion, and waits while its name is taken.
func TestClaimsFollowTheirPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t,
			&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "p-b"}})
		ctrl, err := New(Config{Informers: c.Informers})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		made := pod("a", "b")
		made.UID = ""
		c.Add(made)
		claims := c.Client.CoreV1().PersistentVolumeClaims("d")
		owned := func(name string) func() bool {
			return func() bool {
				claim, err := claims.Get(t.Context(), name, metav1.GetOptions{})
				return err == nil && metav1.IsControlledBy(claim, made)
			}
		}
		controllertest.Eventually(t, "the first claim", owned("p-a"))
		controllertest.Eventually(t, "an event about the second", func() bool {
			events, err := c.Client.CoreV1().Events("d").List(t.Context(), metav1.ListOptions{})
			for _, e := range events.Items {
				if e.Reason == "FailedBinding" &&
					e.Message == "ephemeral volume b: PVC d/p-b was not created for pod d/p (pod is not owner)" {
					return err == nil
				}
			}
			return false
		})
		for _, name := range []string{"p-a", "p-b"} {
			if err := claims.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			controllertest.Eventually(t, name+" again", owned(name))
		}
	})
}
