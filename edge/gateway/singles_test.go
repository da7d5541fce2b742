package gateway

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

// TestObjectsThatAreTooMany: newcomers take the places that are left, and no others.
func TestObjectsThatAreTooMany(t *testing.T) {
	s := NewSecrets(fake.NewClientset(), func() {})
	names := map[types.NamespacedName]bool{}
	for i := range mostWatched - 1 {
		names[types.NamespacedName{Namespace: "m", Name: fmt.Sprint(i)}] = true
	}
	if left := s.Want(names); left != 0 {
		t.Errorf("%d have no room", left)
	}
	for i := range 100 { // before the others by their names
		names[types.NamespacedName{Namespace: "a", Name: fmt.Sprint(i)}] = true
	}
	if left := s.Want(names); left != 99 || len(s.watched) != mostWatched ||
		s.watched[types.NamespacedName{Namespace: "m", Name: "0"}] == nil {
		t.Errorf("%d have no room, %d are watched", left, len(s.watched))
	}
	delete(names, types.NamespacedName{Namespace: "m", Name: "0"})
	if left := s.Want(names); left != 98 || len(s.watched) != mostWatched {
		t.Errorf("when one has gone, %d have no room, %d are watched", left, len(s.watched))
	}
}

// TestRoomForEveryNamespace: after a restart all are newcomers. A namespace with many names leaves
// room for the few of another one.
func TestRoomForEveryNamespace(t *testing.T) {
	s := NewSecrets(fake.NewClientset(), func() {})
	names := map[types.NamespacedName]bool{}
	for i := range 2 * mostWatched {
		names[types.NamespacedName{Namespace: "a", Name: fmt.Sprint(i)}] = true
	}
	for i := range 3 {
		names[types.NamespacedName{Namespace: "z", Name: fmt.Sprint(i)}] = true
	}
	left := s.Want(names)
	has := 0
	for name := range s.watched {
		if name.Namespace == "z" {
			has++
		}
	}
	if has != 3 || len(s.watched) != mostWatched || left != mostWatched+3 {
		t.Errorf("%d of 3 are watched, %d in all, %d have no room", has, len(s.watched), left)
	}
}
