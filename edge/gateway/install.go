package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	clientv1 "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayclient "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned/typed/apis/v1"

	"github.com/barque/barque/edge/gateway/crds"
	"github.com/barque/barque/edge/gateway/translate"
)

var everything = labels.Everything()

// Clients of the API server itself, which creates the default objects of a cluster.
type Clients struct {
	API         kubernetes.Interface
	Definitions clientv1.CustomResourceDefinitionInterface
	Gateways    gatewayclient.GatewayV1Interface
}

const (
	installRetry = 2 * time.Second
	installAgain = 5 * time.Minute
)

// Install keeps what the gateway needs in the cluster: its account, the definitions of the Gateway
// API, and the classes. It looks again when the classes of Ingresses change.
func Install(ctx context.Context, objects *Objects, clients Clients, logger *slog.Logger) error {
	changed := make(chan struct{}, 1)
	handler, err := objects.ingressClasses.AddEventHandler(each(func(types.NamespacedName, any) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}))
	if err != nil {
		return err
	}
	defer func() { _ = objects.ingressClasses.RemoveEventHandler(handler) }()
	for {
		pause := installAgain
		if err := install(ctx, clients); err != nil && ctx.Err() == nil {
			logger.Warn("installing what the gateway needs; trying again", "retryIn", installRetry, "err", err)
			pause = installRetry
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func install(ctx context.Context, clients Clients) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: Account, Namespace: metav1.NamespaceSystem}}
	accounts := clients.API.CoreV1().ServiceAccounts(account.Namespace)
	if _, err := accounts.Get(ctx, account.Name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		if _, err := accounts.Create(ctx, account, metav1.CreateOptions{}); err != nil &&
			!apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create the service account %s: %w", account.Name, err)
		}
	} else if err != nil {
		return fmt.Errorf("read the service account %s: %w", account.Name, err)
	}
	if err := ingressClass(ctx, clients.API); err != nil {
		return err
	}
	if err := crds.Install(ctx, clients.Definitions); err != nil {
		return err
	}
	if all, err := crds.All(); err != nil || len(all) == 0 {
		return err // built without the definitions, so there may be no such kind
	}
	_, err := clients.Gateways.GatewayClasses().Get(ctx, translate.Class, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	description := "The gateway of the nodes."
	class := &gatewayv1.GatewayClass{
		ObjectMeta: metav1.ObjectMeta{Name: translate.Class},
		Spec:       gatewayv1.GatewayClassSpec{ControllerName: translate.GatewayController, Description: &description},
	}
	if _, err := clients.Gateways.GatewayClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create the GatewayClass %s: %w", class.Name, err)
	}
	return nil
}

// ingressClass creates the class of Ingresses. It is the default while no other class is, unless
// somebody has said false.
func ingressClass(ctx context.Context, client kubernetes.Interface) error {
	classes := client.NetworkingV1().IngressClasses()
	list, err := classes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list IngressClasses: %w", err)
	}
	var own *networkingv1.IngressClass
	other := false
	for i := range list.Items {
		c := &list.Items[i]
		if c.Name == translate.Class {
			own = c
		} else if c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true" {
			other = true
		}
	}
	if own == nil {
		own = &networkingv1.IngressClass{
			ObjectMeta: metav1.ObjectMeta{Name: translate.Class, Annotations: map[string]string{}},
			Spec:       networkingv1.IngressClassSpec{Controller: translate.IngressController},
		}
		if !other {
			own.Annotations[networkingv1.AnnotationIsDefaultIngressClass] = "true"
		}
		if _, err := classes.Create(ctx, own, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create the IngressClass %s: %w", own.Name, err)
		}
		return nil
	}
	next := own.DeepCopy()
	switch value, set := own.Annotations[networkingv1.AnnotationIsDefaultIngressClass]; {
	case other && value == "true":
		delete(next.Annotations, networkingv1.AnnotationIsDefaultIngressClass)
	case !other && !set:
		if next.Annotations == nil {
			next.Annotations = map[string]string{}
		}
		next.Annotations[networkingv1.AnnotationIsDefaultIngressClass] = "true"
	default:
		return nil
	}
	if _, err := classes.Update(ctx, next, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update the IngressClass %s: %w", own.Name, err)
	}
	return nil
}
