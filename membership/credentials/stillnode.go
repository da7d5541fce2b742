package credentials

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/membership/join"
)

// StillNode returns the reason why a node with an expired certificate gets no new one. Its Node
// decides: deleting the Node removes the node, and a Node made after the expiry is another
// machine's.
func StillNode(ctx context.Context, client kubernetes.Interface, name string, ended time.Time) error {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: there is no Node %q", join.ErrRemoved, name)
	}
	if err != nil {
		return fmt.Errorf("look the node up: %w", err)
	}
	return sameMachine(node, ended)
}

func sameMachine(node *corev1.Node, ended time.Time) error {
	if made := node.CreationTimestamp.Time; made.After(ended) {
		return fmt.Errorf("%w: the Node %q was made at %s, by another machine", join.ErrRemoved, node.Name,
			made.UTC().Format(time.RFC3339))
	}
	return nil
}
