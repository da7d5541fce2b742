package apiserver

import (
	"fmt"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/admission"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"

	"github.com/barque/barque/apiserver/authn"
	"github.com/barque/barque/apiserver/componentstatus"
	"github.com/barque/barque/apiserver/objectcache"
	"github.com/barque/barque/apiserver/rawlist"
	"github.com/barque/barque/apiserver/resource"
	"github.com/barque/barque/apiserver/restoptions"
	"github.com/barque/barque/apiserver/reviews"
	"github.com/barque/barque/apiserver/services"
)

// rawListCache bounds, in bytes, the cache of objects for lists.
const rawListCache = 32 << 20

// parts are the shared parts of a generic server.
type parts struct {
	resources []resource.Resource
	scheme    *runtime.Scheme
	codecs    serializer.CodecFactory
	storage   *restoptions.Getter
	services  *services.Resolver
	counts    flowcontrolrequest.StorageObjectCountTracker
	admission admission.Interface

	storageConfig restoptions.Config
}

func (s *Server) newParts(sec *security) (*parts, error) {
	p := &parts{counts: flowcontrolrequest.NewStorageObjectCountTracker()}
	p.resources = append(p.resources, s.cfg.Resources...)
	p.resources = append(p.resources, reviews.Authentication(sec.tokens, s.cfg.ServiceAccounts.Audiences)...)
	p.resources = append(p.resources, reviews.Authorization(sec.reviews, sec.rules)...)
	p.resources = append(p.resources, componentstatus.Resource(s.cfg.ReadyChecks))
	if k := resource.Find[corev1.Pod](p.resources); k != nil {
		p.resources = append(p.resources, bindings(k))
	}
	err := s.wire(p.resources, sec)
	if err != nil {
		return nil, err
	}
	metrics, err := s.newMetrics()
	if err != nil {
		return nil, err
	}
	p.resources = append(p.resources, metrics...)
	if p.scheme, err = newScheme(p.resources); err != nil {
		return nil, err
	}
	p.codecs = newCodecs(p.scheme)
	p.storageConfig = restoptions.Config{
		Backend:      s.cfg.Store,
		Scheme:       p.scheme,
		Serializer:   serializer.NewCodecFactory(p.scheme),
		CountTracker: p.counts,
		Transformers: s.cfg.Transformers,
		// Events are written far more than watched, and expire.
		Uncached: []schema.GroupResource{corev1.Resource("events")},
		Objects:  objectcache.New(objectcache.DefaultSize), // of the libraries' storages, too
		RawLists: rawlist.NewCache(rawListCache),
		Logger:   s.logger,
	}
	s.caches = []ager{p.storageConfig.Objects, p.storageConfig.RawLists}
	if p.storage, err = restoptions.New(p.storageConfig); err != nil {
		return nil, fmt.Errorf("storage: %w", err)
	}
	if err := s.wireServices(p); err != nil {
		return nil, fmt.Errorf("services: %w", err)
	}
	own, err := url.Parse(s.loopback.host)
	if err != nil {
		return nil, err
	}
	if p.services, err = services.NewResolver(s.informers, own); err != nil {
		return nil, err
	}
	p.admission, err = s.newAdmission(sec)
	return p, err
}

// installPaths adds the paths that are not resources.
func (s *Server) installPaths(sec *security, p *parts) {
	mux := s.chain.own.Handler.NonGoRestfulMux
	mux.Handle(authn.ConfigurationPath, sec.issuer.ServeConfiguration(func() string {
		return "https://" + s.cfg.Advertise.String() + authn.KeysPath
	}))
	mux.Handle(authn.KeysPath, sec.issuer.ServeKeys())
	s.documents = s.newDocuments(p)
	for prefix, h := range s.cfg.Extra {
		mux.Handle(prefix, h)
		mux.HandlePrefix(prefix+"/", h)
	}
}
