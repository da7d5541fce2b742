package apiserver

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"

	barqueadmission "github.com/barque/barque/apiserver/admission"
	"github.com/barque/barque/apiserver/authn"
	"github.com/barque/barque/apiserver/openapi"
	"github.com/barque/barque/apiserver/rbac"
	"github.com/barque/barque/apiserver/resource"
	"github.com/barque/barque/apiserver/reviews"
	"github.com/barque/barque/apiserver/storage"
)

// parts are what a generic server is put together from.
type parts struct {
	resources []resource.Resource
	scheme    *runtime.Scheme
	codecs    serializer.CodecFactory
	storage   *storage.RESTOptions
	counts    flowcontrolrequest.StorageObjectCountTracker
	admission admission.Interface
}

func (s *Server) newParts(sec *security) (*parts, error) {
	p := &parts{counts: flowcontrolrequest.NewStorageObjectCountTracker()}
	p.resources = append(p.resources, s.cfg.Resources...)
	p.resources = append(p.resources, reviews.Authentication(sec.tokens, s.cfg.ServiceAccounts.Audiences)...)
	p.resources = append(p.resources, reviews.Authorization(sec.authorizer, sec.rules)...)
	err := s.wire(p.resources, sec)
	if err != nil {
		return nil, err
	}
	if p.scheme, err = newScheme(p.resources); err != nil {
		return nil, err
	}
	p.codecs = newCodecs(p.scheme)
	p.storage, err = storage.NewRESTOptions(storage.RESTOptionsConfig{
		Backend:      s.cfg.Store,
		Scheme:       p.scheme,
		Serializer:   serializer.NewCodecFactory(p.scheme),
		CountTracker: p.counts,
		// Events are written far more than watched, and expire.
		Uncached: []schema.GroupResource{corev1.Resource("events")},
		Logger:   s.logger,
	})
	if err != nil {
		return nil, fmt.Errorf("storage: %w", err)
	}
	p.admission, err = s.newAdmission(sec)
	return p, err
}

// newAdmission lists the admission steps in their order.
func (s *Server) newAdmission(sec *security) (admission.Interface, error) {
	core := s.informers.Core().V1()
	immortal := sets.New(metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic)
	if s.cfg.SignsOfLife != nil {
		immortal.Insert(corev1.NamespaceNodeLease) // it could never be emptied
	}
	namespaces, err := lifecycle.NewLifecycle(immortal)
	if err != nil {
		return nil, fmt.Errorf("namespace lifecycle admission: %w", err)
	}
	initializer.New(s.client, nil, s.informers, sec.authorizer, nil, nil, nil, nil).Initialize(namespaces)
	if err := namespaces.ValidateInitialization(); err != nil {
		return nil, fmt.Errorf("namespace lifecycle admission: %w", err)
	}
	steps := []admission.Interface{
		namespaces,
		barqueadmission.NewNodeRestriction(core.Pods().Lister(), s.client),
		barqueadmission.NewServiceAccounts(core.ServiceAccounts().Lister(), s.client),
	}
	if s.serves(schedulingv1.SchemeGroupVersion.WithResource("priorityclasses")) {
		steps = append(steps, barqueadmission.NewPriorities(s.informers.Scheduling().V1().PriorityClasses().Lister(), s.client))
	}
	steps = append(steps,
		barqueadmission.NewTolerations(s.cfg.TolerationSeconds.NotReady, s.cfg.TolerationSeconds.Unreachable),
		rbac.NewGuard(sec.rbac, sec.authorizer))
	return admission.NewChainHandler(steps...), nil
}

// installPaths adds what is not a resource.
func (s *Server) installPaths(sec *security, p *parts) {
	mux := s.generic.Handler.NonGoRestfulMux
	mux.Handle(authn.ConfigurationPath, sec.issuer.ServeConfiguration(func() string {
		return "https://" + s.cfg.Advertise.String() + authn.KeysPath
	}))
	mux.Handle(authn.KeysPath, sec.issuer.ServeKeys())
	docs := openapi.New(s.generic.Handler.GoRestfulContainer, p.scheme, s.generic.EffectiveVersion.Info().GitVersion)
	mux.Handle(openapi.V2Path, docs.V2())
	mux.Handle(openapi.V3Path, docs.V3())
	mux.HandlePrefix(openapi.V3Path+"/", docs.V3())
	for prefix, h := range s.cfg.Extra {
		mux.Handle(prefix, h)
		mux.HandlePrefix(prefix+"/", h)
	}
}
