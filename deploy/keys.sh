#!/bin/sh
# Make a certificate authority, a certificate for the SuperLink, and a key pair for each SuperNode.
#   deploy/keys.sh FOLDER NODES [HOST ...]       HOST: names or addresses under which nodes reach the SuperLink
# Keep ca.key and superlink.key on the server. Copy ca.crt and its own node-N.key to each node, nothing else.
set -eu
folder=$1 nodes=$2
shift 2
mkdir -p "$folder"
cd "$folder"
umask 077

names="IP:127.0.0.1,DNS:localhost"
for host in "$@"; do
    case $host in *[!0-9.]*) names="$names,DNS:$host" ;; *) names="$names,IP:$host" ;; esac
done

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -days 365 -subj "/CN=federation CA" \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" \
    -keyout ca.key -out ca.crt 2>/dev/null
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -subj "/CN=superlink" \
    -keyout superlink.key -out superlink.csr 2>/dev/null
printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\nauthorityKeyIdentifier=keyid\n' "$names" >superlink.ext
openssl x509 -req -in superlink.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -extfile superlink.ext \
    -out superlink.crt 2>/dev/null
rm -f superlink.csr superlink.ext ca.srl

node=0
while [ "$node" -lt "$nodes" ]; do
    [ -e "node-$node.key" ] || ssh-keygen -q -t ecdsa -b 384 -N "" -C "node-$node" -f "node-$node.key"
    node=$((node + 1))
done
echo "keys for a SuperLink ($names) and $nodes SuperNodes in $folder"
