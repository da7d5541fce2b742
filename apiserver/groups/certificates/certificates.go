// Package certificates declares the resources of the certificates.k8s.io API group: requests for
// certificates by users and by pods, and the bundles of authorities that signers are trusted by.
//
// Requests are checked and stored here. Controllers and users approve and sign them; the server
// adds the approval subresource, and the permission check of signers.
package certificates

import (
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/barque/barque/apiserver/resource"
)

var version = certificatesv1.SchemeGroupVersion

// Resources declares the group's resources.
func Resources() []resource.Resource {
	return []resource.Resource{
		signingRequests(),
		trustBundles(),
		podRequests(),
	}
}

const none = resource.None
