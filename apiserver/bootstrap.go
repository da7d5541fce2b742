package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	barqueadmission "github.com/barque/barque/apiserver/admission"
	"github.com/barque/barque/apiserver/rbac"
	"github.com/barque/barque/apiserver/services"
)

const (
	// ensureAgain is how often the leader looks whether what every cluster has is still there.
	ensureAgain = 5 * time.Minute
	// ensureRetry is the pause after a failed attempt.
	ensureRetry = time.Second
)

// LeaderRoutine keeps what every cluster has: the system namespaces, the default roles and
// bindings, the system priority classes, an APIService for each group that is served, what
// extension API servers go by, and the kubernetes Service; and it repairs reservations
// of service addresses and node ports. It is to run on the leader only, with a client that carries
// the leader's term, and returns when ctx ends.
func (s *Server) LeaderRoutine(ctx context.Context, client kubernetes.Interface) error {
	s.leads.Store(true)
	defer s.leads.Store(false)
	var repair sync.WaitGroup
	defer repair.Wait()
	repair.Go(func() { services.Repair(ctx, client, s.addresses, s.ports, s.logger) })
	repair.Go(func() {
		s.registration.run(ctx, client, func(err error) { s.logger.Warn("registering API groups; trying again", "err", err) })
	})
	for {
		pause, renewed := ensureAgain, (<-chan struct{})(nil)
		if s.cfg.Renewed != nil { // authorities may have come or gone
			renewed = s.cfg.Renewed()
		}
		if err := s.ensure(ctx, client); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			s.logger.Warn("laying down what every cluster has; trying again", "err", err)
			pause = ensureRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-renewed:
		case <-time.After(pause):
		}
	}
}

// ensure goes through all of it once and reports everything that failed. The default namespace
// comes when all that others rely on is there: with it the cluster is born.
func (s *Server) ensure(ctx context.Context, client kubernetes.Interface) error {
	errs := []error{ensureNamespaces(ctx, client, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease)}
	if s.serves(rbacv1.SchemeGroupVersion.WithResource("clusterroles")) {
		errs = append(errs, rbac.Reconcile(ctx, client))
	}
	if s.serves(schedulingv1.SchemeGroupVersion.WithResource("priorityclasses")) {
		errs = append(errs, ensurePriorityClasses(ctx, client))
	}
	if s.serves(corev1.SchemeGroupVersion.WithResource("configmaps")) {
		errs = append(errs, s.ensureExtensionAuthentication(ctx, client))
	}
	errs = append(errs, s.registration.ensure(ctx, client.Discovery().RESTClient()))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := ensureNamespaces(ctx, client, metav1.NamespaceDefault); err != nil {
		return err
	}
	if s.serves(corev1.SchemeGroupVersion.WithResource("services")) {
		return s.ensureService(ctx, client)
	}
	return nil
}

func ensureNamespaces(ctx context.Context, client kubernetes.Interface, names ...string) error {
	var errs []error
	for _, name := range names {
		_, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
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

// ensureService makes the Service by which pods find the API. Its endpoints are a controller's:
// they follow the living servers.
func (s *Server) ensureService(ctx context.Context, client kubernetes.Interface) error {
	existing, err := client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err == nil {
		if want := FirstServiceAddress(s.cfg.ServiceCIDR).String(); existing.Spec.ClusterIP != want {
			s.logger.Error("the kubernetes Service is not at the first service address; was the service CIDR changed?",
				"clusterIP", existing.Spec.ClusterIP, "want", want)
		}
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("the kubernetes Service: %w", err)
	}
	address := FirstServiceAddress(s.cfg.ServiceCIDR)
	family := corev1.IPv4Protocol
	if address.Is6() {
		family = corev1.IPv6Protocol
	}
	_, err = client.CoreV1().Services(metav1.NamespaceDefault).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Labels: map[string]string{"component": "apiserver", "provider": "kubernetes"}},
		Spec: corev1.ServiceSpec{
			Type:            corev1.ServiceTypeClusterIP,
			ClusterIP:       address.String(),
			ClusterIPs:      []string{address.String()},
			IPFamilies:      []corev1.IPFamily{family},
			IPFamilyPolicy:  ptr.To(corev1.IPFamilyPolicySingleStack),
			SessionAffinity: corev1.ServiceAffinityNone,
			// No selector: the endpoints are the servers, not pods.
			Ports: []corev1.ServicePort{{
				Name: "https", Port: 443, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(int32(s.cfg.Advertise.Port())),
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("the kubernetes Service: %w", err)
	}
	return nil
}

// FirstServiceAddress is the address of the kubernetes Service in a range of ClusterIPs; serving
// certificates must be valid for it.
func FirstServiceAddress(services netip.Prefix) netip.Addr { return services.Masked().Addr().Next() }
