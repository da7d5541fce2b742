// Package bootstrap keeps the objects that every cluster has: the system namespaces, the default
// roles and bindings, the system priority classes, the priority levels and flow schemas of
// requests, an APIService for each group that is served, the data that extension API servers go by,
// the Services of the API and of cluster DNS, the default ServiceCIDR, and the cluster's own
// CustomResourceDefinitions.
//
// The leader keeps them. Objects that users have changed stay as they are, where the cluster can do
// with that.
package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	barqueadmission "github.com/barque/barque/apiserver/admission"
	"github.com/barque/barque/apiserver/apiservices"
	"github.com/barque/barque/apiserver/definitions"
	"github.com/barque/barque/apiserver/fairness"
	"github.com/barque/barque/apiserver/rbac"
	"github.com/barque/barque/apiserver/services"
)

const (
	// ensureAgain is how often the leader checks that the cluster's default objects are there.
	ensureAgain = 5 * time.Minute
	// ensureFlowsAgain is the same for priority levels and flow schemas, as in kube-apiserver.
	ensureFlowsAgain = time.Minute
	// ensureRetry is the pause after a failed attempt, which doubles up to ensureRetryMost.
	ensureRetry     = time.Second
	ensureRetryMost = 30 * time.Second
)

// Config has the parts of a server from which the default objects follow.
type Config struct {
	// ServiceCIDRs are the configured ranges of ClusterIPs. Addresses of the first one are those of
	// the cluster's own Services.
	ServiceCIDRs []netip.Prefix
	// Port of the API.
	Port uint16
	// ClientCA and ProxyCA give the PEM bundles that extension API servers go by, and ProxyClient
	// is the name of a server towards them.
	ClientCA, ProxyCA func() ([]byte, error)
	ProxyClient       string
	// Definitions are the cluster's own CustomResourceDefinitions, in YAML.
	Definitions [][]byte
	// Serves reports whether this server serves a resource.
	Serves       func(schema.GroupVersionResource) bool
	Informers    informers.SharedInformerFactory
	Registration *apiservices.Registration
	// Allocator is nil where no Services are served.
	Allocator *services.Allocator
	// Renewed returns a channel that is closed when the authorities are new ones; nil leaves them
	// to the next round.
	Renewed func() <-chan struct{}
	Now     func() time.Time
	Logger  *slog.Logger
}

// Objects keeps the default objects of a cluster. Make it with New.
type Objects struct {
	cfg  Config
	told atomic.Pointer[Told]
}

// New returns the Objects of a server.
func New(cfg Config) *Objects { return &Objects{cfg: cfg} }

// Run keeps the objects, and repairs the allocations of service addresses and node ports, until ctx
// ends. It is for the leader.
func (o *Objects) Run(ctx context.Context, client kubernetes.Interface) {
	defer o.told.Store(nil) // whoever leads next may tell something else
	recorder, stop := newRecorder(ctx, client)
	defer stop() // after those that record have ended
	var repair sync.WaitGroup
	defer repair.Wait()
	if o.cfg.Allocator != nil {
		repair.Go(func() { o.cfg.Allocator.Repair(ctx, recorder, o.cfg.Logger) })
	}
	cidr := &defaultCIDR{cidrs: o.cfg.ServiceCIDRs, client: client, recorder: recorder, logger: o.cfg.Logger}
	repair.Go(func() {
		o.cfg.Registration.Run(ctx, client,
			func(err error) { o.cfg.Logger.Warn("registering API groups; trying again", "err", err) })
	})
	if fairness.Served(o.cfg.Serves) {
		repair.Go(func() { o.keepFlows(ctx, client) })
	}
	retry := ensureRetry
	for {
		pause, renewed := ensureAgain, (<-chan struct{})(nil)
		if o.cfg.Renewed != nil { // authorities may have come or gone
			renewed = o.cfg.Renewed()
		}
		err := o.Ensure(ctx, client)
		if o.cfg.Allocator != nil {
			err = errors.Join(err, cidr.ensure(ctx))
		}
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			o.cfg.Logger.Warn("creating the cluster's default objects; trying again", "retryIn", retry, "err", err)
			pause, retry = retry, min(2*retry, ensureRetryMost)
		} else {
			retry = ensureRetry
		}
		select {
		case <-ctx.Done():
			return
		case <-renewed:
		case <-time.After(pause):
		}
	}
}

// keepFlows repairs the priority levels and flow schemas of every cluster, until ctx ends.
func (o *Objects) keepFlows(ctx context.Context, client kubernetes.Interface) {
	ticker := time.NewTicker(ensureFlowsAgain)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := fairness.Ensure(ctx, client, o.cfg.Informers); err != nil && ctx.Err() == nil {
			o.cfg.Logger.Warn("repairing priority levels and flow schemas; trying again", "err", err)
		}
	}
}

// Ensure goes through all of it once and reports everything that failed. The default namespace
// comes after everything that others rely on: then the cluster is bootstrapped.
func (o *Objects) Ensure(ctx context.Context, client kubernetes.Interface) error {
	errs := []error{
		ensureNamespaces(ctx, client, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease)}
	if o.cfg.Serves(rbacv1.SchemeGroupVersion.WithResource("clusterroles")) {
		errs = append(errs, rbac.Reconcile(ctx, client, o.cfg.Informers.Rbac().V1()))
	}
	if o.cfg.Serves(schedulingv1.SchemeGroupVersion.WithResource("priorityclasses")) {
		errs = append(errs, ensurePriorityClasses(ctx, client))
	}
	if fairness.Served(o.cfg.Serves) {
		errs = append(errs, fairness.Ensure(ctx, client, o.cfg.Informers))
	}
	if o.cfg.Serves(corev1.SchemeGroupVersion.WithResource("configmaps")) {
		errs = append(errs, o.ensureExtensionAuthentication(ctx, client))
	}
	errs = append(errs, o.cfg.Registration.Ensure(ctx, client.Discovery().RESTClient()))
	errs = append(errs, definitions.Ensure(ctx, client.Discovery().RESTClient(), o.cfg.Definitions))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := ensureNamespaces(ctx, client, metav1.NamespaceDefault); err != nil {
		return err
	}
	if o.cfg.Serves(corev1.SchemeGroupVersion.WithResource("services")) {
		err := o.ensureService(ctx, client, o.kubernetesService())
		if first := o.cfg.ServiceCIDRs[0]; first.Contains(services.DNSAddress(first)) {
			err = errors.Join(err, o.ensureService(ctx, client, o.dnsService()))
		}
		return err
	}
	return nil
}

func ensureNamespaces(ctx context.Context, client kubernetes.Interface, names ...string) error {
	var errs []error
	for _, name := range names {
		_, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = client.CoreV1().Namespaces().Create(ctx,
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			errs = append(errs, fmt.Errorf("namespace %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func ensurePriorityClasses(ctx context.Context, client kubernetes.Interface) error {
	var errs []error
	for _, class := range barqueadmission.SystemPriorityClasses() {
		_, err := client.SchedulingV1().PriorityClasses().Get(ctx, class.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = client.SchedulingV1().PriorityClasses().Create(ctx, &class, metav1.CreateOptions{})
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			errs = append(errs, fmt.Errorf("priority class %s: %w", class.Name, err))
		}
	}
	return errors.Join(errs...)
}

// ensureService makes a Service that every cluster has, where there is none. What users have
// changed about it stays.
func (o *Objects) ensureService(ctx context.Context, client kubernetes.Interface, want *corev1.Service) error {
	existing, err := client.CoreV1().Services(want.Namespace).Get(ctx, want.Name, metav1.GetOptions{})
	if err == nil {
		if existing.Spec.ClusterIP != want.Spec.ClusterIP {
			o.cfg.Logger.Error("a Service of every cluster is not at its address; was the service CIDR changed?",
				"service", want.Namespace+"/"+want.Name, "clusterIP", existing.Spec.ClusterIP, "want",
				want.Spec.ClusterIP)
		}
		return nil
	}
	if apierrors.IsNotFound(err) {
		_, err = client.CoreV1().Services(want.Namespace).Create(ctx, want, metav1.CreateOptions{})
	}
	switch {
	case apierrors.IsInvalid(err):
		return fmt.Errorf(
			"the Service %s/%s: %w; if another Service has the address %s, give that one another: delete it and make it anew",
			want.Namespace, want.Name, err, want.Spec.ClusterIP)
	case err != nil && !apierrors.IsAlreadyExists(err):
		return fmt.Errorf("the Service %s/%s: %w", want.Namespace, want.Name, err)
	}
	return nil
}

// kubernetesService is the Service by which pods find the API. A controller makes its endpoints,
// which follow the living servers.
func (o *Objects) kubernetesService() *corev1.Service {
	return clusterService(metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, Name: "kubernetes",
		Labels: map[string]string{"component": "apiserver", "provider": "kubernetes"},
	}, services.FirstAddress(o.cfg.ServiceCIDRs[0]), corev1.ServicePort{
		Name: "https", Port: 443, Protocol: corev1.ProtocolTCP,
		TargetPort: intstr.FromInt32(int32(o.cfg.Port)),
	})
}

// dnsService is the Service by which pods find cluster DNS. It has no endpoints: every node answers
// for it itself.
func (o *Objects) dnsService() *corev1.Service {
	return clusterService(metav1.ObjectMeta{
		Namespace: metav1.NamespaceSystem, Name: "kube-dns",
		Labels: map[string]string{"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true"},
	}, services.DNSAddress(o.cfg.ServiceCIDRs[0]),
		corev1.ServicePort{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(53)},
		corev1.ServicePort{Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(53)})
}

// clusterService has no selector: no pods stand behind it.
func clusterService(meta metav1.ObjectMeta, address netip.Addr, ports ...corev1.ServicePort) *corev1.Service {
	family := corev1.IPv4Protocol
	if address.Is6() {
		family = corev1.IPv6Protocol
	}
	return &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
		Type:            corev1.ServiceTypeClusterIP,
		ClusterIP:       address.String(),
		ClusterIPs:      []string{address.String()},
		IPFamilies:      []corev1.IPFamily{family},
		IPFamilyPolicy:  ptr.To(corev1.IPFamilyPolicySingleStack),
		SessionAffinity: corev1.ServiceAffinityNone,
		Ports:           ports,
	}}
}
