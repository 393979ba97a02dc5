"""What the S3 server answers: requests in, responses out."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from urllib.parse import quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from benchmarks.remote.bucket_folder import BucketFolder, StoredObject
from benchmarks.remote.messages import FileRange, Request, RequestError, Response

XML = b"Content-Type: application/xml\r\n"
RANGE = re.compile(rb"bytes=(\d*)-(\d*)$")
NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


class S3Service:
    """Answers requests from the buckets below a folder.

    Args:
        buckets: The objects.
    """

    def __init__(self, buckets: BucketFolder) -> None:
        self._buckets = buckets
        self._operations: dict[str, Callable[[Request, str, str], Response]] = {
            "GET": self._get,
            "HEAD": self._get,
            "PUT": self._put,
            "POST": self._post,
            "DELETE": self._delete,
        }

    def answer(self, request: Request) -> Response:
        """Returns the response to a request; errors are responses too."""
        bucket, _, key = request.path[1:].partition("/")
        try:
            operation = self._operations.get(request.method)
            if operation is None:
                raise RequestError(405, "MethodNotAllowed", f"There is no operation {request.method}.")
            return operation(request, bucket, key)
        except RequestError as error:
            return error.response(request.method, has_body=request.method != "HEAD")

    def _get(self, request: Request, bucket: str, key: str) -> Response:
        if not key:
            return self._get_bucket(request, bucket)
        found = self._buckets.open(bucket, key)
        self._check_conditions(request, found)
        response = Response(request.method, 200, found.headers, suffix=key.rpartition(".")[2])
        start, stop = 0, found.size
        if wanted := request.headers.get(b"range"):
            chosen = _range(wanted, found.size)
            if chosen is not None:
                start, stop = chosen
                response.status = 206
                response.headers += b"Content-Range: bytes %d-%d/%d\r\n" % (start, stop - 1, found.size)
        if request.method == "HEAD":
            response.length = stop - start
        else:
            response.body = FileRange(found.file, start, stop - start)
        if request.headers.get(b"if-none-match") in (b"*", found.etag.encode()):
            return Response(request.method, 304, found.headers)
        return response

    @staticmethod
    def _check_conditions(request: Request, found: StoredObject) -> None:
        wanted = request.headers.get(b"if-match")
        if wanted is not None and wanted not in (b"*", found.etag.encode()):
            raise RequestError(412, "PreconditionFailed", f"The object's ETag is {found.etag}.")
        since = request.headers.get(b"if-unmodified-since")
        if wanted is None and since is not None:
            latest = parsedate_to_datetime(since.decode("latin-1"))
            if parsedate_to_datetime(found.modified) > latest:
                raise RequestError(412, "PreconditionFailed", f"The object was modified at {found.modified}.")

    def _get_bucket(self, request: Request, bucket: str) -> Response:
        if not bucket:
            names = "".join(f"<Bucket><Name>{escape(name)}</Name></Bucket>" for name in self._buckets.buckets())
            return _xml("LIST", "ListAllMyBucketsResult", f"<Buckets>{names}</Buckets>")
        if not self._buckets.has_bucket(bucket):
            raise RequestError(404, "NoSuchBucket", f"There is no bucket {bucket!r}.")
        if request.method == "HEAD":
            return Response("HEAD", 200)
        if "location" in request.query:
            return _xml("LIST", "LocationConstraint", "")
        return _xml("LIST", "ListBucketResult", self._listing(request, bucket))

    def _listing(self, request: Request, bucket: str) -> str:
        query = request.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        limit = min(int(query.get("max-keys") or 1000), 1000)
        version_2 = query.get("list-type") == "2"
        after = query.get("start-after" if version_2 else "marker", "")
        if token := query.get("continuation-token"):
            after = base64.urlsafe_b64decode(token).decode()
        found = set(self._buckets.names(bucket, prefix) if delimiter == "/" else self._buckets.keys(bucket, prefix))
        if delimiter not in ("", "/"):
            found = {_up_to(key, prefix, delimiter) for key in found}
        ordered = sorted((name for name in found if name > after), key=str.encode)
        page = ordered[:limit]
        encode: Callable[[str], str] = quote if query.get("encoding-type") == "url" else escape
        entries = []
        for name in page:
            if delimiter and name.endswith(delimiter) and name != prefix:
                entries.append(f"<CommonPrefixes><Prefix>{encode(name)}</Prefix></CommonPrefixes>")
            else:
                entries.append(self._entry(bucket, name, encode(name)))
        head = (
            f"<Name>{escape(bucket)}</Name><Prefix>{encode(prefix)}</Prefix><Delimiter>{encode(delimiter)}</Delimiter>"
            f"<MaxKeys>{limit}</MaxKeys><KeyCount>{len(page)}</KeyCount>"
            f"<IsTruncated>{str(len(page) < len(ordered)).lower()}</IsTruncated>"
        )
        if query.get("encoding-type") == "url":
            head += "<EncodingType>url</EncodingType>"
        if len(page) < len(ordered):
            following = base64.urlsafe_b64encode(page[-1].encode()).decode()
            head += (
                f"<NextContinuationToken>{following}</NextContinuationToken>"
                if version_2
                else f"<NextMarker>{encode(page[-1])}</NextMarker>"
            )
        return head + "".join(entries)

    def _entry(self, bucket: str, key: str, written: str) -> str:
        found = self._buckets.open(bucket, key)
        modified = parsedate_to_datetime(found.modified).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        return (
            f"<Contents><Key>{written}</Key><LastModified>{modified}</LastModified><ETag>{escape(found.etag)}</ETag>"
            f"<Size>{found.size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )

    def _put(self, request: Request, bucket: str, key: str) -> Response:
        if not key:
            self._buckets.root.joinpath(self._buckets.path_of(bucket)).mkdir(exist_ok=True)
            return Response("PUT", 200)
        query = request.query
        content = self._copied(request) if b"x-amz-copy-source" in request.headers else request.body
        if "uploadId" in query:
            etag = self._buckets.write_part(query["uploadId"], int(query["partNumber"]), content)
        else:
            self._check_write(request, bucket, key)
            etag = self._buckets.write(bucket, key, content)
        if b"x-amz-copy-source" in request.headers:
            return _xml("COPY", "CopyObjectResult", f"<ETag>{escape(etag)}</ETag>")
        return Response("PUT", 200, f"ETag: {etag}\r\n".encode())

    def _check_write(self, request: Request, bucket: str, key: str) -> None:
        """Raises an error where the conditions of a write are not met."""
        wanted = request.headers.get(b"if-match")
        unwanted = request.headers.get(b"if-none-match")
        if wanted is None and unwanted is None:
            return
        etag = self._buckets.etag(bucket, key)
        if wanted is not None and (etag is None or wanted not in (b"*", etag.encode())):
            raise RequestError(412 if etag else 404, "PreconditionFailed", f"The object's ETag is {etag}.")
        if unwanted is not None and etag is not None and unwanted in (b"*", etag.encode()):
            raise RequestError(412, "PreconditionFailed", f"There is an object with the ETag {etag}.")

    def _copied(self, request: Request) -> bytes:
        source = unquote(request.headers[b"x-amz-copy-source"].decode("latin-1")).lstrip("/")
        bucket, _, key = source.partition("/")
        self._buckets.open(bucket, key)
        with open(self._buckets.path_of(bucket, key), "rb") as file:
            content = file.read()
        if limits := request.headers.get(b"x-amz-copy-source-range"):
            start, stop = _range(limits, len(content)) or (0, len(content))
            content = content[start:stop]
        return content

    def _post(self, request: Request, bucket: str, key: str) -> Response:
        query = request.query
        names = f"<Bucket>{escape(bucket)}</Bucket><Key>{escape(key)}</Key>"
        if "uploads" in query:
            upload = self._buckets.begin_upload()
            return _xml("UPLOAD", "InitiateMultipartUploadResult", f"{names}<UploadId>{upload}</UploadId>")
        if "uploadId" in query:
            numbers = [int(text) for text in _texts(request.body, "PartNumber")]
            self._check_write(request, bucket, key)
            etag = self._buckets.finish_upload(bucket, key, query["uploadId"], numbers)
            return _xml("UPLOAD", "CompleteMultipartUploadResult", f"{names}<ETag>{escape(etag)}</ETag>")
        if "delete" in query:
            keys = _texts(request.body, "Key")
            for one in keys:
                self._buckets.remove(bucket, one)
            gone = "".join(f"<Deleted><Key>{escape(one)}</Key></Deleted>" for one in keys)
            return _xml("DELETE", "DeleteResult", gone)
        raise RequestError(501, "NotImplemented", f"This server has no POST with {json.dumps(dict(query))}.")

    def _delete(self, request: Request, bucket: str, key: str) -> Response:
        if "uploadId" in request.query:
            self._buckets.abort_upload(request.query["uploadId"])
        elif key:
            self._buckets.remove(bucket, key)
        else:
            raise RequestError(501, "NotImplemented", "This server removes no buckets.")
        return Response("DELETE", 204)


def _range(header: bytes, size: int) -> tuple[int, int] | None:
    """Returns (start, stop) of a Range header, stop exclusive; None for the whole object.

    Raises:
        RequestError: The range begins after the end of the object.
    """
    match = RANGE.match(header)
    if match is None or match.group(0) == b"bytes=-":
        return None
    first, last = match.groups()
    if not first:
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last else size
    if start >= size:
        raise RequestError(416, "InvalidRange", f"The object has {size} bytes.")
    return (start, stop) if start < stop else None


def _up_to(key: str, prefix: str, delimiter: str) -> str:
    head, found, _ = key[len(prefix) :].partition(delimiter)
    return prefix + head + delimiter if found else key


def _texts(document: bytes, name: str) -> list[str]:
    """Returns the text of each element with a name.

    Raises:
        RequestError: The document is not XML.
    """
    try:
        elements = ElementTree.fromstring(document).iter()
    except ElementTree.ParseError as error:
        raise RequestError(400, "MalformedXML", "The body is not XML.") from error
    return [element.text or "" for element in elements if element.tag.rpartition("}")[2] == name]


def _xml(kind: str, name: str, inner: str) -> Response:
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{name} {NAMESPACE}>{inner}</{name}>'
    return Response(kind, 200, XML, text.encode())
