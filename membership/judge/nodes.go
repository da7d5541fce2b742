package judge

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Nodes are the Nodes in the store, for a revocation.Keeper.
type Nodes struct{ Client corev1client.NodeInterface }

// UID returns the UID of a Node; empty without one.
func (n Nodes) UID(ctx context.Context, name string) (string, error) {
	node, err := n.Client.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return string(node.UID), nil
}

// Delete deletes the Node of the UID, if it is there.
func (n Nodes) Delete(ctx context.Context, name, uid string) error {
	err := n.Client.Delete(ctx, name, *metav1.NewPreconditionDeleteOptions(uid))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
