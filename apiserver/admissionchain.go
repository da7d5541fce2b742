package apiserver

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/component-base/tracing"

	barqueadmission "github.com/barque/barque/apiserver/admission"
	"github.com/barque/barque/apiserver/admission/registry"
	"github.com/barque/barque/apiserver/groups/admissionregistration"
	"github.com/barque/barque/apiserver/rbac"
	"github.com/barque/barque/apiserver/resource"
	"github.com/barque/barque/apiserver/services"
)

// mapperReset is the interval at which the kinds of parameters of policies are read anew.
const mapperReset = 30 * time.Second

// newAdmission makes the admission chain: the plugins that the settings choose, and around them two
// guards that are always there, against metadata that would cost too much and against escalation.
// Warnings about Ingresses are no plugin of Kubernetes, and see them as all plugins have left them.
func (s *Server) newAdmission(sec *security) (admission.Interface, error) {
	parts, err := s.admissionParts(sec)
	if err != nil {
		return nil, fmt.Errorf("admission: %w", err)
	}
	plugins, err := registry.Build(s.cfg.Admission, parts, s.serves)
	if err != nil {
		return nil, fmt.Errorf("admission: %w", err)
	}
	chain := admission.NewChainHandler(resource.MetadataGuard{}, plugins,
		barqueadmission.NewIngressWarnings(s.cfg.IngressProblems),
		rbac.NewGuard(sec.rbac, sec.authorizer))
	return admissionmetrics.WithStepMetrics(chain), nil
}

func (s *Server) admissionParts(sec *security) (*registry.Parts, error) {
	own := s.LoopbackConfig()
	objects, err := dynamic.NewForConfig(own)
	if err != nil {
		return nil, fmt.Errorf("loopback client: %w", err)
	}
	stopped := make(chan struct{})
	s.closers = append(s.closers, func() { close(stopped) })
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(s.client.Discovery()))
	go wait.Until(mapper.Reset, mapperReset, stopped) // it ends with Run

	webhookUsers := webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil,
		s.loopback.overTLS(user.APIServerUser, user.SystemPrivilegedGroup), tracing.NewNoopTracerProvider())
	p := &registry.Parts{
		ServerID:           s.cfg.Name,
		Version:            newEffectiveVersion(s.cfg.Build),
		Client:             s.client,
		Dynamic:            objects,
		Mapper:             mapper,
		Informers:          s.informers,
		Authorizer:         sec.authorizer,
		Stopped:            stopped,
		WebhookUsers:       webhookUsers,
		NodeLeases:         s.cfg.SignsOfLife != nil,
		NotReadySeconds:    s.cfg.TolerationSeconds.NotReady,
		UnreachableSeconds: s.cfg.TolerationSeconds.Unreachable,
		NodeAddress:        s.cfg.NodeAddress,
	}
	if signs := s.cfg.SignsOfLife; signs != nil {
		p.Member = func(node string) bool {
			_, heard := signs.LastSeen(node)
			return heard
		}
	}
	for _, r := range s.cfg.Resources {
		if gv := r.GroupVersionResource().GroupVersion(); !slices.Contains(p.GroupVersions, gv) {
			p.GroupVersions = append(p.GroupVersions, gv)
		}
	}
	if s.serves(corev1.SchemeGroupVersion.WithResource("services")) &&
		s.serves(discoveryv1.SchemeGroupVersion.WithResource("endpointslices")) {
		host, err := url.Parse(own.Host)
		if err != nil {
			return nil, err
		}
		if p.Services, err = services.NewResolver(s.informers, host); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// wirePolicies refuses parameters of policies that the policy's writer may not read.
func (s *Server) wirePolicies(resources []resource.Resource, sec *security) {
	policies := s.client.AdmissionregistrationV1()
	admissionregistration.AuthorizeParams(resources, &admissionregistration.Params{
		Authorizer: sec.authorizer,
		Resource:   s.resourceOf,
		Validating: func(ctx context.Context, name string) (*admissionv1.ParamKind, error) {
			p, err := policies.ValidatingAdmissionPolicies().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			return p.Spec.ParamKind, nil
		},
		Mutating: func(ctx context.Context, name string) (*admissionv1.ParamKind, error) {
			p, err := policies.MutatingAdmissionPolicies().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			return p.Spec.ParamKind, nil
		},
	})
}

// resourceOf returns the resource of a kind, from discovery.
func (s *Server) resourceOf(kind schema.GroupVersionKind) (schema.GroupVersionResource, error) {
	gv := kind.GroupVersion()
	list, err := s.client.Discovery().ServerResourcesForGroupVersion(gv.String())
	if err != nil {
		return schema.GroupVersionResource{}, err
	}
	for _, r := range list.APIResources {
		main := !strings.Contains(r.Name, "/")
		if main && r.Kind == kind.Kind && (r.Group == "" || r.Group == kind.Group) &&
			(r.Version == "" || r.Version == kind.Version) {
			return gv.WithResource(r.Name), nil
		}
	}
	return schema.GroupVersionResource{}, fmt.Errorf("no resource of %s", kind)
}
