package credentials

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/membership/join"
)

func TestANodeThatWasMadeAnewIsAnotherMachine(t *testing.T) {
	ended := time.Now()
	node := func(made time.Time) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a1", CreationTimestamp: metav1.NewTime(made)}}
	}
	if err := sameMachine(node(ended.Add(-time.Hour)), ended); err != nil {
		t.Error(err)
	}
	if err := sameMachine(node(ended.Add(time.Hour)), ended); !errors.Is(err, join.ErrRemoved) {
		t.Errorf("got %v", err)
	}
}
