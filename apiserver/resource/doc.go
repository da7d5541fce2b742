// Package resource turns a declaration of an API resource into all parts that k8s.io/apiserver
// needs to serve it: scheme registration, defaulting, a generic registry store with its strategies,
// the status and scale subresources, selectable fields and table rows.
//
// # The shape
//
// A resource is one value of type [Kind], generic over the versioned Go type of k8s.io/api:
//
//	func configMaps() resource.Resource {
//		return &resource.Kind[corev1.ConfigMap]{
//			GroupVersion: corev1.SchemeGroupVersion,
//			Name:         "configmaps",
//			Singular:     "configmap",
//			ShortNames:   []string{"cm"},
//			List:         &corev1.ConfigMapList{},
//			Validate:     validateConfigMap,
//			Columns:      []metav1.TableColumnDefinition{resource.Name(), resource.Column("Data", "integer", "..."), resource.Age()},
//			Row: func(cm *corev1.ConfigMap, now time.Time) []any {
//				return []any{cm.Name, int64(len(cm.Data) + len(cm.BinaryData)), resource.Since(cm.CreationTimestamp, now)}
//			},
//		}
//	}
//
// Only GroupVersion, Name, Singular and List are required. A group's package returns its kinds as a
// []Resource; the server registers them all, builds their storage and installs it.
//
// # Rules of every kind
//
// The machinery applies the API conventions to every kind:
//   - metadata is validated, its system fields are filled in and kept;
//   - with Status set, a create starts with an empty status, a write to the main resource keeps the
//     stored status, a write to the status subresource keeps everything else, and server-side apply
//     does not own the fields that such a write resets;
//   - with Generation set, metadata.generation is 1 at creation and grows by one with each change
//     outside of metadata and status;
//   - labels, annotations, finalizers and owner references of the metadata belong to clients.
//
// The functions of a declaration are called in the order Default, Prepare, Validate, Warnings. They
// get the stored object as old, nil on create, and must not change or keep it.
//
// # Invariants
//
//   - There is no internal version: the type registered for GroupVersion is also registered as the
//     internal version of its group. A second wire version of the same kind is an [Alias], with
//     conversions to and from the type of the Kind.
//   - A declaration belongs to one server, which may add hooks and subresources to it before it is
//     registered; functions that return declarations make new ones with each call.
//
// It is not for resources that exist only as a question and its answer, except for the small
// [Action], nor for those that are not stored, except for [Computed]. Subresources that reach a
// node are plain rest.Storage values handed in by the server.
package resource
