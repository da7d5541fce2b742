package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	barqueadmission "github.com/barque/barque/apiserver/admission"
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

// LeaderRoutine keeps the cluster's default objects: the system namespaces, the default roles and
// bindings, the system priority classes, the priority levels and flow schemas of requests, an
// APIService for each group that is served, what extension API servers go by, the Services of the
// API and of cluster DNS, and the default ServiceCIDR; and it repairs the allocations of service
// addresses and node ports. It is to run on the leader only, with a client that carries the
// leader's term, and returns when ctx ends.
func (s *Server) LeaderRoutine(ctx context.Context, client kubernetes.Interface) error {
	s.leads.Store(true)
	defer s.leads.Store(false)
	defer s.told.Store(nil) // whoever leads next may tell something else
	recorder, stop := newRecorder(ctx, client)
	defer stop() // after those that record have ended
	var repair sync.WaitGroup
	defer repair.Wait()
	if s.allocator != nil {
		repair.Go(func() { s.allocator.Repair(ctx, recorder, s.logger) })
	}
	cidr := &defaultCIDR{cidrs: s.cfg.serviceCIDRs(), client: client, recorder: recorder, logger: s.logger}
	repair.Go(func() {
		s.registration.run(ctx, client,
			func(err error) { s.logger.Warn("registering API groups; trying again", "err", err) })
	})
	if s.hasFlows() {
		repair.Go(func() { s.keepFlows(ctx, client) })
	}
	retry := ensureRetry
	for {
		pause, renewed := ensureAgain, (<-chan struct{})(nil)
		if s.cfg.Renewed != nil { // authorities may have come or gone
			renewed = s.cfg.Renewed()
		}
		err := s.ensure(ctx, client)
		if s.allocator != nil {
			err = errors.Join(err, cidr.ensure(ctx))
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			s.logger.Warn("creating the cluster's default objects; trying again", "in", retry, "err", err)
			pause, retry = retry, min(2*retry, ensureRetryMost)
		} else {
			retry = ensureRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-renewed:
		case <-time.After(pause):
		}
	}
}

// keepFlows repairs the priority levels and flow schemas of every cluster, until ctx ends.
func (s *Server) keepFlows(ctx context.Context, client kubernetes.Interface) {
	ticker := time.NewTicker(ensureFlowsAgain)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := fairness.Ensure(ctx, client, s.informers); err != nil && ctx.Err() == nil {
			s.logger.Warn("repairing priority levels and flow schemas; trying again", "err", err)
		}
	}
}

// hasFlows reports whether the kinds that configure priority and fairness are served.
func (s *Server) hasFlows() bool {
	v1 := flowcontrolv1.SchemeGroupVersion
	return s.serves(v1.WithResource("flowschemas")) && s.serves(v1.WithResource("prioritylevelconfigurations"))
}

// ensure goes through all of it once and reports everything that failed. The default namespace
// comes after everything that others rely on: then the cluster is bootstrapped.
func (s *Server) ensure(ctx context.Context, client kubernetes.Interface) error {
	errs := []error{
		ensureNamespaces(ctx, client, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease)}
	if s.serves(rbacv1.SchemeGroupVersion.WithResource("clusterroles")) {
		errs = append(errs, rbac.Reconcile(ctx, client, s.informers.Rbac().V1()))
	}
	if s.serves(schedulingv1.SchemeGroupVersion.WithResource("priorityclasses")) {
		errs = append(errs, ensurePriorityClasses(ctx, client))
	}
	if s.hasFlows() {
		errs = append(errs, fairness.Ensure(ctx, client, s.informers))
	}
	if s.serves(corev1.SchemeGroupVersion.WithResource("configmaps")) {
		errs = append(errs, s.ensureExtensionAuthentication(ctx, client))
	}
	errs = append(errs, s.registration.ensure(ctx, client.Discovery().RESTClient()))
	errs = append(errs, ensureDefinitions(ctx, client.Discovery().RESTClient(), s.cfg.Definitions))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := ensureNamespaces(ctx, client, metav1.NamespaceDefault); err != nil {
		return err
	}
	if s.serves(corev1.SchemeGroupVersion.WithResource("services")) {
		err := s.ensureService(ctx, client, s.kubernetesService())
		if s.cfg.ServiceCIDR.Contains(DNSServiceAddress(s.cfg.ServiceCIDR)) {
			err = errors.Join(err, s.ensureService(ctx, client, s.dnsService()))
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
func (s *Server) ensureService(ctx context.Context, client kubernetes.Interface, want *corev1.Service) error {
	existing, err := client.CoreV1().Services(want.Namespace).Get(ctx, want.Name, metav1.GetOptions{})
	if err == nil {
		if existing.Spec.ClusterIP != want.Spec.ClusterIP {
			s.logger.Error("a Service of every cluster is not at its address; was the service CIDR changed?",
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
func (s *Server) kubernetesService() *corev1.Service {
	return clusterService(metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, Name: "kubernetes",
		Labels: map[string]string{"component": "apiserver", "provider": "kubernetes"},
	}, FirstServiceAddress(s.cfg.ServiceCIDR), corev1.ServicePort{
		Name: "https", Port: 443, Protocol: corev1.ProtocolTCP,
		TargetPort: intstr.FromInt32(int32(s.cfg.Advertise.Port())),
	})
}

// dnsService is the Service by which pods find cluster DNS. It has no endpoints: every node answers
// for it itself.
func (s *Server) dnsService() *corev1.Service {
	return clusterService(metav1.ObjectMeta{
		Namespace: metav1.NamespaceSystem, Name: "kube-dns",
		Labels: map[string]string{"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true"},
	}, DNSServiceAddress(s.cfg.ServiceCIDR),
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

// FirstServiceAddress is the address of the kubernetes Service in a range of ClusterIPs; serving
// certificates must be valid for it.
func FirstServiceAddress(cidr netip.Prefix) netip.Addr { return services.FirstAddress(cidr) }

// DNSServiceAddress is the address of cluster DNS in a range of ClusterIPs.
func DNSServiceAddress(cidr netip.Prefix) netip.Addr { return services.DNSAddress(cidr) }
